"""The doctor: measures the network between the ranks of a job, finds set-up mistakes, predicts and recommends."""
