// asteroid-edge: the library. Everything here is pure: models as data, differentiation, planning, simulation. Code that
// accesses this machine is in `asteroid-edge/node`.

export {
  type DifferentiateOptions,
  differentiate,
  outputGradientName,
  type StageGraphs,
} from './autodiff/differentiate.ts';
export { type TangentGraph, type TangentOptions, tangentGraph, tangentName } from './autodiff/forward-mode.ts';
export type {
  Cluster,
  DeviceSpec,
  LayerProfile,
  LinkSpeed,
  Plan,
  PlanLayout,
  Profile,
  StagePlan,
} from './cluster/cluster.ts';
export { drawPlan } from './cluster/draw.ts';
export { checkTogether, parseCluster, parsePlan, parseProfile } from './cluster/validate.ts';
export type { Engine, Executable, Value } from './engine/engine.ts';
export { createReferenceEngine } from './engine/reference.ts';
export { InputError, ProtocolError, RunError } from './errors.ts';
export { GraphBuilder } from './graph/builder.ts';
export { gradientName } from './graph/gradient-name.ts';
export type { Graph, Node } from './graph/graph.ts';
export {
  fanInUniform,
  heNormal,
  heUniform,
  type Initialization,
  normal,
  ones,
  truncatedNormal,
  uniform,
  xavierNormal,
  xavierUniform,
  zeros,
} from './graph/initialization.ts';
export { type CutTensor, type Layer, type LayerSequence, layers } from './graph/layers.ts';
export { exportGraph, exportModel } from './graph/onnx/export.ts';
export { type ImportedModel, importModel } from './graph/onnx/import.ts';
export { inferenceMode, trainingMode } from './graph/onnx/modes.ts';
export { extractStage, type StageGraph } from './graph/stage.ts';
export { instantiate, type StaticGraph } from './graph/static.ts';
export { type ElementType, type Tensor, tensor } from './graph/tensor.ts';
export type { ModelOptions } from './models/options.ts';
export { type BuildOptions, type BuiltModel, buildModel, type InputSpec, zoo } from './models/zoo.ts';
export { compareModes, type ModeChoice, type ModeCost, type ModesInput } from './planner/modes.ts';
export { type PlanInput, plan } from './planner/plan.ts';
export { checkProgram } from './schedule/check.ts';
export { program } from './schedule/generate.ts';
export type { DeviceProgram, Instruction, Program, ProgramEvent } from './schedule/program.ts';
export { traceJson } from './schedule/trace.ts';
export { createSimulator, type Simulator, simulate } from './simulator/simulate.ts';
export type { Simulation } from './simulator/simulation.ts';
