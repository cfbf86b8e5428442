"""The command line. Each verb is a module of its own, imported only when it is used."""
