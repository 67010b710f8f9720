"""Training: a forward and a backward of every micro-batch, then a step of the optimizer."""

from stagedb.workflows.workflow import TaskKind, Template, Workflow

FORWARD = Template("forward", "forward")
INPUT_GRADIENT = Template("input_gradient", "backward", upward=False, gradients="inputs")
WEIGHT_GRADIENT = Template("weight_gradient", "backward", upward=False, gradients="weights")
STEP = Template("step", "optimizer", once=True)

FORWARD_TASK = TaskKind("forward", (FORWARD,), "F")
BACKWARD_TASK = TaskKind("backward", (INPUT_GRADIENT, WEIGHT_GRADIENT), "B", after=FORWARD_TASK, cost=2)
INPUT_GRADIENT_TASK = TaskKind(
    "input_gradient", (INPUT_GRADIENT,), "I", after=FORWARD_TASK, half=True, whole=BACKWARD_TASK
)
WEIGHT_GRADIENT_TASK = TaskKind(
    "weight_gradient", (WEIGHT_GRADIENT,), "W", after=INPUT_GRADIENT_TASK, sends=False, half=True, whole=BACKWARD_TASK
)
STEP_TASK = TaskKind("step", (STEP,), sends=False, cost=0)

TRAINING = Workflow(
    "training",
    "forward, backward and optimizer",
    (FORWARD_TASK, BACKWARD_TASK, INPUT_GRADIENT_TASK, WEIGHT_GRADIENT_TASK, STEP_TASK),
)
