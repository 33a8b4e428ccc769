"""A game of textarena for one player: task.environment = {name = "textarena_game:Game", game = "FrozenLake-v0-raw"}."""

from typing import Any

import textarena  # pyright: ignore[reportMissingImports]


class Game:
    """Play until the game ends; its reward, from -1 to 1, becomes a value from 0 to 1."""

    def __init__(self, problem: Any, seed: int, *, game: str = "GuessTheNumber-v0-raw") -> None:
        self._game = textarena.make(game)
        self._game.reset(num_players=1, seed=seed % 2**31)

    def begin(self) -> str:
        return self._observation()

    def step(self, text: str) -> str | float:
        done, _ = self._game.step(action=text)
        if not done:
            return self._observation()
        rewards, _ = self._game.close()
        return min(max((rewards[0] + 1) / 2, 0.0), 1.0)

    def _observation(self) -> str:
        """Return the messages to the player since the last turn, without the player's own."""
        player, observed = self._game.get_observation()
        if isinstance(observed, str):
            return observed
        return "\n".join(str(text) for by, text, *_ in observed if by != player)
