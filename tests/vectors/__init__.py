"""Golden vectors: record sets as real brokers stored them, and what foreign consumers read in them.

corpus    the vectors and their manifest, and the form in which records are compared
foreign   decoders and consumers that share no code with the mirror
scripts   what the producers wrote, and how
clients   the four producers
capture   the program that made the vectors
"""
