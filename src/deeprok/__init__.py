"""deeprok: reinforcement learning that keeps working when the real system differs from the simulator.

config = deeprok.make_config("rtd_dqn", episodes=300)
run = deeprok.train(config)
result = deeprok.evaluate(run)
result.plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeprok import plot
    from deeprok.agents.algorithms import ALGORITHMS
    from deeprok.core.errors import DeeprokError
    from deeprok.environments.checks import Finding, check_environment
    from deeprok.estimators import GradientConfig, KalmanConfig
    from deeprok.evaluation.calibration import Calibration, calibrate
    from deeprok.evaluation.comparison.compare import compare
    from deeprok.evaluation.comparison.result import Comparison
    from deeprok.evaluation.export import export
    from deeprok.evaluation.grid import evaluate
    from deeprok.evaluation.groups.result import GroupComparison
    from deeprok.evaluation.guard import Guard, GuardCheck
    from deeprok.evaluation.render.render import render
    from deeprok.evaluation.result import Evaluation
    from deeprok.evaluation.screening.result import Screening
    from deeprok.evaluation.screening.screen import screen
    from deeprok.evaluation.stress.result import Stress
    from deeprok.evaluation.stress.stress import stress
    from deeprok.evaluation.trained import Run, load
    from deeprok.identification.identify import identify
    from deeprok.identification.log import Log, read_log
    from deeprok.identification.result import Identified, read_identified
    from deeprok.report.report import write_report
    from deeprok.runs.settings import Config, make_config
    from deeprok.sweeps.sweep import SweepResult, sweep
    from deeprok.tabular.solution import solve
    from deeprok.training.jobs import resume
    from deeprok.training.train import train
    from deeprok.tuning.result import Tuning
    from deeprok.tuning.tune import tune

__all__ = [
    "ALGORITHMS",
    "Calibration",
    "Comparison",
    "Config",
    "DeeprokError",
    "Evaluation",
    "Finding",
    "GradientConfig",
    "GroupComparison",
    "Guard",
    "GuardCheck",
    "Identified",
    "KalmanConfig",
    "Log",
    "Run",
    "Screening",
    "Stress",
    "SweepResult",
    "Tuning",
    "calibrate",
    "check_environment",
    "compare",
    "evaluate",
    "export",
    "identify",
    "load",
    "make_config",
    "plot",
    "read_identified",
    "read_log",
    "render",
    "resume",
    "screen",
    "solve",
    "stress",
    "sweep",
    "train",
    "tune",
    "write_report",
]

#: Public name -> its module, imported when the name is asked for: JAX takes a second that no help text needs.
_MODULES = {
    "ALGORITHMS": "agents.algorithms",
    "Calibration": "evaluation.calibration",
    "Comparison": "evaluation.comparison.result",
    "Config": "runs.settings",
    "DeeprokError": "core.errors",
    "Evaluation": "evaluation.result",
    "Finding": "environments.checks",
    "GradientConfig": "estimators",
    "GroupComparison": "evaluation.groups.result",
    "Guard": "evaluation.guard",
    "GuardCheck": "evaluation.guard",
    "Identified": "identification.result",
    "KalmanConfig": "estimators",
    "Log": "identification.log",
    "Run": "evaluation.trained",
    "Screening": "evaluation.screening.result",
    "Stress": "evaluation.stress.result",
    "SweepResult": "sweeps.sweep",
    "Tuning": "tuning.result",
    "calibrate": "evaluation.calibration",
    "check_environment": "environments.checks",
    "compare": "evaluation.comparison.compare",
    "evaluate": "evaluation.grid",
    "export": "evaluation.export",
    "identify": "identification.identify",
    "load": "evaluation.trained",
    "make_config": "runs.settings",
    "read_identified": "identification.result",
    "read_log": "identification.log",
    "render": "evaluation.render.render",
    "resume": "training.jobs",
    "screen": "evaluation.screening.screen",
    "solve": "tabular.solution",
    "stress": "evaluation.stress.stress",
    "sweep": "sweeps.sweep",
    "train": "training.train",
    "tune": "tuning.tune",
    "write_report": "report.report",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("deeprok")
    if name == "plot":  # a module itself
        return import_module("deeprok.plot")
    if name not in _MODULES:
        raise AttributeError(f"module 'deeprok' has no attribute '{name}'")
    return getattr(import_module(f"deeprok.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
