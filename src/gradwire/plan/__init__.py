"""Planning: members and estimates of their links in, a Plan out. Pure; no torch, no sockets, no clock."""
