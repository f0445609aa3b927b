// asteroid-edge/node: the part that accesses this machine: training sessions, workers, the compute thread, files.

export { createComputeThread } from './engine/node/compute-thread.ts';
export { joinRun } from './runtime/host/join.ts';
export { loadModel } from './runtime/host/models.ts';
export { measureHere } from './runtime/host/profile-here.ts';
export { evaluate, prepareRun, runPrepared, runSession, verifyRun } from './runtime/host/session-here.ts';
export type { Observer, RoundMetrics, RunEvent } from './runtime/protocol/events.ts';
export type { EvaluateOptions, Evaluation } from './runtime/run/evaluate.ts';
export type { LoadedModel } from './runtime/run/loaded-model.ts';
export type { PreparedRun, SessionInput } from './runtime/run/prepare.ts';
export type { SessionEnvironment, SessionResult } from './runtime/run/session.ts';
export type { TrainSettings } from './runtime/run/settings.ts';
export { compare } from './runtime/run/verify.ts';
export { loadDataset } from './storage/node/datasets.ts';
export { createRunFolder, loadLatestCheckpoint, resumeRunFolder, saveCheckpoint } from './storage/node/local.ts';
