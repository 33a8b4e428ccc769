"""An object for another process that imports nothing."""


class Facts:
    def facts(self) -> str:
        return "here"
