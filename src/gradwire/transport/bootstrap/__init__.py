"""Bootstrap: what ranks do before they are connected: addresses, the job secret, settings that must agree."""
