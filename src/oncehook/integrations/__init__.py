"""For other people's tools and frameworks: each module is for one of them, and is imported only where that is used."""
