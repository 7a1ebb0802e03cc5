"""Models that go on with a text: a decoder, its cache on the board, the loop around both."""
