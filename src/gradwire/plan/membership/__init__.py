"""How members agree on plan versions, and who is a member."""
