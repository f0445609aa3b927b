// Runs a prepared session in its folder, for `train` and `quickstart`: records it there, shows it, and prints the
// result.

import { stringify as toYaml } from 'yaml';
import { systemClock } from '../clock.ts';
import { RunError } from '../errors.ts';
import { startLocalWorkers } from '../runtime/host/local-workers.ts';
import { runPrepared } from '../runtime/host/session-here.ts';
import { createPlanFiles, createStageFiles } from '../runtime/host/stage-files.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import type { LocalWorkers } from '../runtime/run/local-workers.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import { recordRun } from '../runtime/run/record.ts';
import type { SessionResult } from '../runtime/run/session.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import type { RunFolder } from '../storage/run-folder.ts';
import { useEntries } from '../training/data/preparation.ts';
import { describeRun } from './describe-run.ts';
import { type AnsweredMetrics, answerMetrics } from './metrics.ts';
import { makeRunFolder } from './new-folder.ts';
import { interruptedExitCode, type Output } from './output.ts';
import { keepResults, writeReport } from './results/keep-results.ts';
import { printClasses } from './results/print-classes.ts';
import { openBoard } from './results/tensorboard.ts';
import type { TestResults } from './results/test-results.ts';
import { settingsDocument } from './settings.ts';
import { command, counted, duration, type Terminal } from './terminal.ts';
import { type DashboardFlag, type Look, lookOn } from './window.ts';

/** Where to train. */
export interface Place {
  readonly folder: RunFolder;
  /** Removes the folder if no round was done; absent for a resumed run, which keeps its folder. */
  discard?(): Promise<void>;
}

/** The result of a run and its folder. */
export interface FolderResult extends SessionResult {
  /** Undefined if no round was done and the folder was removed. */
  readonly folder: string | undefined;
}

/** How a run is watched and stopped, and the workers that wait for it. */
export interface Surroundings {
  readonly output: Output;
  readonly signal: AbortSignal;
  readonly localWorkers: LocalWorkers | undefined;
  /** Whether browsers may look on. */
  readonly dashboard: DashboardFlag;
  /** ADDRESS:PORT at which Prometheus asks. Default: nowhere. */
  readonly metrics?: string | undefined;
}

/** Starts the workers of a run, if it has any, and reads and runs it while they begin. */
export async function withLocalWorkers<Result>(
  { workers: count, threads, engine, device }: Pick<TrainSettings, 'workers' | 'threads' | 'engine' | 'device'>,
  run: (localWorkers: LocalWorkers | undefined) => Promise<Result>,
): Promise<Result> {
  if (count === 0) return run(undefined);
  const localWorkers = startLocalWorkers({ count, threads, engine, device });
  try {
    return await run(localWorkers);
  } finally {
    localWorkers.drop();
  }
}

/** Makes the folder of a new run and runs in it. */
export async function runInNewFolder(
  run: PreparedRun,
  out: string | undefined,
  surroundings: Surroundings,
): Promise<FolderResult> {
  const { output } = surroundings;
  const place = await makeRunFolder(out, (message) => output.observe({ kind: 'warning', message }));
  return runIn(place, run, surroundings);
}

/** Runs a session, prints the summary and sets the exit code. */
export async function runIn(
  place: Place,
  run: PreparedRun,
  { output, signal, localWorkers, dashboard, metrics: metricsAt }: Surroundings,
): Promise<FolderResult> {
  const { folder } = place;
  let look: Look | undefined;
  if (!output.isJson) describeRun(run, output.terminal);
  const recorder = recordRun(folder);
  const board = run.settings.tensorboard ? await openBoard(folder.path) : undefined;
  let metrics: AnsweredMetrics | undefined;
  let roundCount = 0;
  let checkpointRound = run.machine.firstRound;
  const observe = (event: RunEvent): void => {
    if (event.kind === 'round') roundCount++;
    if (event.kind === 'checkpoint') checkpointRound = event.round;
    recorder.observe(event);
    board?.observe(event);
    metrics?.observe(event);
    output.observe(event);
    look?.window?.observe(event);
  };
  const leave = async (): Promise<void> => {
    await look?.close();
    await board?.close();
    await metrics?.close();
    await recorder.finish();
    if (roundCount === 0) await place.discard?.();
  };
  let result: SessionResult;
  let results: TestResults | undefined;
  const isKept = (): boolean => roundCount > 0 || place.discard === undefined;
  try {
    if (metricsAt !== undefined) metrics = await answerMetrics(metricsAt, run, output);
    look = await lookOn(run, { output, dashboard, observe });
    await folder.write('config.yaml', toYaml(settingsDocument(run.settings)));
    await writeUse(folder, run);
    const onWarning = (message: string): void => observe({ kind: 'warning', message });
    result = await runPrepared(
      run,
      {
        clock: systemClock,
        observe,
        signal: AbortSignal.any([signal, look.signal]),
        stageStore: createStageFiles({ onWarning }),
        planStore: createPlanFiles(),
        localWorkers,
      },
      folder,
      look.window,
    );
    if (isKept()) results = await keepResults(folder, run, result);
  } catch (error) {
    observe({ kind: 'failed', message: error instanceof Error ? error.message : String(error) });
    // The first error is the one to report.
    await leave().catch(() => {});
    throw error instanceof RunError && checkpointRound > 0 ? withResume(error, checkpointRound, folder.path) : error;
  }
  await leave();
  return finish({ ...result, folder: isKept() ? folder.path : undefined }, folder, results, output);
}

/** Writes the report, prints the summary and sets the exit code. */
async function finish(
  result: FolderResult,
  folder: RunFolder,
  results: TestResults | undefined,
  output: Output,
): Promise<FolderResult> {
  if (result.folder !== undefined) await writeReport(folder, output);
  output.json(summary(result, results));
  if (!output.isJson) {
    if (results !== undefined) printClasses(results, output.terminal);
    printSummary(result, output.terminal);
  }
  if (result.stopped) process.exitCode = interruptedExitCode;
  return result;
}

/** What the outputs of the trained model mean: the classes, one a line, and how samples were made. */
async function writeUse(folder: RunFolder, { settings, train, companions = {} }: PreparedRun): Promise<void> {
  const { classNames, preparation } = train;
  const tokenizer = companions['tokenizer.json'];
  if (tokenizer !== undefined) await folder.write('tokenizer.json', tokenizer);
  if (classNames !== undefined) await folder.write('labels.txt', classNames.map((name) => `${name}\n`).join(''));
  const entries = useEntries({ loss: settings.loss, preparation, classNames });
  if (entries.size > 0) await folder.write('data.json', JSON.stringify(Object.fromEntries(entries)));
}

/** Adds to an error what is saved and the command that resumes the run. */
function withResume({ message }: RunError, checkpointRound: number, folder: string): RunError {
  const what = message
    .replace(/; the last checkpoint is after round \d+; continue with --resume/, '')
    .replace(/\.$/, '');
  return new RunError(
    `${what}; the last checkpoint is after round ${checkpointRound}; continue with: ` +
      `${command(`train --resume ${folder}`)}`,
  );
}

function summary(
  { evaluation, modelRound, rounds, losses, trainSeconds, stopped, folder }: FolderResult,
  results: TestResults | undefined,
): Record<string, unknown> {
  const { classes, confusion, meanAbsoluteError, r2 } = results ?? {};
  return {
    event: 'done',
    stopped,
    rounds,
    finalLoss: losses.at(-1) ?? null,
    trainSeconds,
    runFolder: folder ?? null,
    ...(evaluation === undefined ? {} : { testAccuracy: evaluation.accuracy, testLoss: evaluation.loss, modelRound }),
    ...(meanAbsoluteError === undefined ? {} : { meanAbsoluteError, r2 }),
    ...(classes === undefined ? {} : { classes, ...(confusion === undefined ? {} : { confusion }) }),
  };
}

function printSummary(
  { rounds, modelRound, losses, trainSeconds, stopped, folder }: FolderResult,
  terminal: Terminal,
): void {
  if (folder === undefined) return terminal.section('Stopped', 'before the first round; nothing was kept');
  const finalLoss = losses.at(-1);
  const loss = finalLoss === undefined ? '' : `, last loss ${finalLoss.toFixed(4)}`;
  terminal.section(stopped ? 'Stopped' : 'Done', `after ${counted(rounds, 'round')}, ${duration(trainSeconds)}${loss}`);
  if (modelRound < rounds) terminal.section('Kept', `the best model, as it was after round ${modelRound}`);
  terminal.section('Folder', `${terminal.colors.bold(folder)}  (model.onnx, report.html, metrics.jsonl, checkpoints/)`);
  if (stopped) terminal.section('Continue', command(`train --resume ${folder}`));
}
