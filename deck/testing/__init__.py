"""What tests of Deck and of its plugins share; nothing that runs in production imports it."""
