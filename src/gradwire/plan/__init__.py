"""plan: members + what is known of their links -> Plan. Pure; no torch, no sockets, no clock of its own."""
