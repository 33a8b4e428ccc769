"""The live page: follows run folders, studies and logs while they are written, and never writes anything itself."""
