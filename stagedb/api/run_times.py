"""Where the time of a run goes, in words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunTimes:
    """Where the time of a run goes, as of `RunInfo`. step, busy, exposed, unexplained, launching: in ns."""

    step: int
    busy: int
    exposed: int
    unexplained: int
    launching: int

    @property
    def spent(self) -> str:
        """How a rank spends its time, in the mean, such as `computes or copies 46.2%, only communicates …`."""
        idle = self.step - self.busy - self.exposed
        parts = (("computes or copies", self.busy), ("only communicates", self.exposed), ("does nothing", idle))
        return ", ".join(f"{what} {ns / self.step:.1%}" for what, ns in parts)

    @property
    def gaps(self) -> str:
        """What the critical path has besides ops, as shares of the run: waits for the host, and other gaps."""
        host, other = self.launching / self.step, self.unexplained / self.step
        return f"waits for the host to launch {host:.1%}, other gaps {other:.1%}"
