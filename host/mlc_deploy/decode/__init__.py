"""Models that write text: language and speech models, their caches on the board, the loop that
chooses tokens."""
