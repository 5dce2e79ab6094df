"""Other tools and frameworks: one module each, imported only where the tool is used."""
