"""Every algorithm under every fault: judged, told as a story, and drawn."""
