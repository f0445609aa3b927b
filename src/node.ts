// asteroid-edge/node: what runs on this machine. Training sessions, workers, the compute thread, files.

export { createComputeThread } from './engine/compute-thread.ts';
export { type EvaluateOptions, type Evaluation, evaluate } from './runtime/evaluate.ts';
export type { Observer, RoundMetrics, RunEvent } from './runtime/events.ts';
export { type LoadedModel, loadModel } from './runtime/models.ts';
export { type PreparedRun, prepareRun, type SessionInput } from './runtime/prepare.ts';
export { measureHere } from './runtime/profile-here.ts';
export { runPrepared, runSession, type SessionEnvironment, type SessionResult } from './runtime/session.ts';
export type { TrainSettings } from './runtime/settings.ts';
export { compare, verifyRun } from './runtime/verify.ts';
export { joinRun } from './runtime/worker/join.ts';
export { loadLatestCheckpoint, saveCheckpoint } from './storage/checkpoints.ts';
export { loadDataset } from './storage/datasets.ts';
export { createRunFolder, resumeRunFolder } from './storage/run-folder.ts';
