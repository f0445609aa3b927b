// asteroid-edge/node: the part that accesses this machine: training sessions, workers, the compute thread, files.

export { createComputeThread } from './engine/node/compute-thread.ts';
export { joinRun } from './runtime/host/join.ts';
export { measureHere } from './runtime/host/profile-here.ts';
export type { Observer, RoundMetrics, RunEvent } from './runtime/protocol/events.ts';
export { type EvaluateOptions, type Evaluation, evaluate } from './runtime/run/evaluate.ts';
export { type LoadedModel, loadModel } from './runtime/run/models.ts';
export { type PreparedRun, prepareRun, type SessionInput } from './runtime/run/prepare.ts';
export { runPrepared, runSession, type SessionEnvironment, type SessionResult } from './runtime/run/session.ts';
export type { TrainSettings } from './runtime/run/settings.ts';
export { compare, verifyRun } from './runtime/run/verify.ts';
export { loadLatestCheckpoint, saveCheckpoint } from './storage/checkpoints.ts';
export { loadDataset } from './storage/datasets.ts';
export { createRunFolder, resumeRunFolder } from './storage/run-folder.ts';
