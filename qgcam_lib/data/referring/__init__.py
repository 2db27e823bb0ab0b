"""Referring expressions: RefCOCOg and the splits Ref-Easy, Ref-Hard and Ref-Adv."""
