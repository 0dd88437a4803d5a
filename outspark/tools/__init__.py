"""The workshop: servers, demo, bench and the generator of the reference. The product imports nothing from here."""
