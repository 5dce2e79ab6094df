"""The kinds of faults, and where each is shown."""

IN_TRAFFIC = {"F4": ("block",), "F5": ("hang",), "F17": ("deadlock", "serialization"), "F22": ("abort",), "F24": ("fork",)}
