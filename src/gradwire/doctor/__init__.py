"""Doctor: measures the network between ranks, finds set-up mistakes, predicts step times, recommends a level."""
