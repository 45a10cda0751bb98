namespace osdn {}
