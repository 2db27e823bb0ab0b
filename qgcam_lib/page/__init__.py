"""What a page shows: tables, pictures, a result box, cards; all text escaped, readable without styles."""
