// asteroid train: coordinates a training run, in this process or over workers.

import type { Command } from 'commander';
import { stringify as toYaml } from 'yaml';
import { systemClock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { parseCluster, parsePlan } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { recordRun } from '../../runtime/record.ts';
import type { RunEvent } from '../../runtime/events.ts';
import { loadModel } from '../../runtime/models.ts';
import { type SessionInput, type SessionResult, runSession } from '../../runtime/session.ts';
import type { TrainSettings } from '../../runtime/settings.ts';
import { loadLatestCheckpoint } from '../../storage/checkpoints.ts';
import { loadDataset } from '../../storage/datasets.ts';
import { type RunFolder, createRunFolder, resumeRunFolder } from '../../storage/run-folder.ts';
import { readConfig, readText } from '../files.ts';
import { type Output, createOutput, interruptSignal, interruptedExitCode } from '../output.ts';
import { addSettingFlags, givenFlags, resolveSettings, settingsDocument } from '../settings.ts';
import { duration } from '../terminal.ts';

interface TrainOptions {
  readonly json?: boolean;
  readonly config?: string;
  readonly resume?: string;
  readonly out?: string;
}

/** Adds the command. */
export function addTrain(program: Command): Command {
  const command = program
    .command('train')
    .description('train a model, here or over workers')
    .option('--out <DIR>', 'the run folder (default: runs/<date>-<n>)')
    .option('--config <FILE>', 'settings as YAML; a flag wins over the file')
    .option('--resume <DIR>', 'go on with the run in this folder from its last checkpoint')
    .addHelpText(
      'after',
      `
Examples:
  $ asteroid train --model digits --data mnist --workers 3 --optimizer adam --lr 0.002 --epochs 3
  $ asteroid train --model net.onnx --data npy:inputs.npy,labels.npy --batch 64 --lr 0.05 --momentum 0.9 --out runs/net
  $ asteroid train --resume runs/net`,
    );
  addSettingFlags(command);
  return command.action((options: TrainOptions & Record<string, unknown>) => train(options));
}

async function train(options: TrainOptions & Record<string, unknown>): Promise<void> {
  const output = createOutput(options);
  const signal = interruptSignal(() => output.terminal.print('Stopping after this round (Ctrl-C again stops at once) …'));
  if (options.resume !== undefined && options.out !== undefined) throw new InputError('--resume goes on in its own folder: leave --out away.');
  const settings = await effectiveSettings(options);
  const input = await prepare(settings, options.resume, output);
  const folder = input.checkpoint === undefined || options.resume === undefined ? await newFolder(options.out, output) : await resumeRunFolder(options.resume, input.checkpoint.round, { onWarning: warn(output) });
  await runInFolder({ ...input, folder }, output, signal);
}

/** Runs a session in its folder, records it there, prints the summary and sets the exit code. */
export async function runInFolder(input: SessionInput & { readonly folder: RunFolder }, output: Output, signal: AbortSignal): Promise<SessionResult> {
  const { folder, settings } = input;
  const recorder = recordRun(folder);
  const observe = (event: RunEvent): void => {
    recorder.observe(event);
    output.observe(event);
  };
  await folder.write('config.yaml', toYaml(settingsDocument(settings)));
  try {
    const result = await runSession(input, { clock: systemClock, observe, signal });
    await recorder.finish();
    summarize(result, folder, output);
    if (result.stopped) process.exitCode = interruptedExitCode;
    return result;
  } catch (error) {
    observe({ kind: 'failed', message: error instanceof Error ? error.message : String(error) });
    await recorder.finish();
    throw error;
  }
}

async function effectiveSettings(options: TrainOptions & Record<string, unknown>): Promise<TrainSettings> {
  const flags = givenFlags(options);
  if (options.resume !== undefined) {
    const file = `${options.resume}/config.yaml`;
    for (const name of ['model', 'batch', 'seed', 'optimizer'] as const) {
      if (Object.hasOwn(flags, name)) throw new InputError(`--${name} cannot change when a run is resumed: start a new run.`);
    }
    const saved = await readConfig(file);
    // How long to train may be said anew in either way.
    if (flags['steps'] !== undefined) delete saved['epochs'];
    if (flags['epochs'] !== undefined) delete saved['steps'];
    return resolveSettings(flags, saved, file);
  }
  return resolveSettings(flags, options.config === undefined ? {} : await readConfig(options.config), options.config ?? '');
}

/** Reads all that a run needs, before anything is written. */
export async function prepare(settings: TrainSettings, resume: string | undefined, output: Output): Promise<SessionInput> {
  const model = await loadModel(settings.model, settings.seed);
  const { train, test } = await loadDataset(settings.data, { seed: settings.seed });
  const evaluation = settings.evalData === undefined ? test : await loadDataset(settings.evalData, { seed: settings.seed }).then((data) => data.test ?? data.train);
  const plan = settings.plan === undefined ? undefined : withPrediction(parsePlan(await readText(settings.plan), settings.plan));
  const cluster = settings.cluster === undefined ? undefined : parseCluster(await readText(settings.cluster), settings.cluster);
  const checkpoint = resume === undefined ? undefined : await lastCheckpoint(resume, output);
  return {
    settings,
    model,
    train,
    test: evaluation,
    ...(plan === undefined ? {} : { plan }),
    ...(cluster === undefined ? {} : { cluster }),
    ...(checkpoint === undefined ? {} : { checkpoint }),
  };
}

/** A plan written by hand has no prediction. */
function withPrediction(plan: ReturnType<typeof parsePlan>): Plan {
  return { ...plan, predicted: plan.predicted ?? { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } };
}

async function lastCheckpoint(folder: string, output: Output): Promise<SessionInput['checkpoint']> {
  const { checkpoint, warnings } = await loadLatestCheckpoint(`${folder}/checkpoints`);
  for (const warning of warnings) output.observe({ kind: 'warning', message: warning });
  if (checkpoint === undefined) throw new InputError(`${folder} holds no whole checkpoint to go on from: start a new run.`);
  return checkpoint;
}

async function newFolder(out: string | undefined, output: Output): Promise<RunFolder> {
  return createRunFolder({ date: new Date(), ...(out === undefined ? {} : { out }) }, { onWarning: warn(output) });
}

function warn(output: Output): (message: string) => void {
  return (message) => output.observe({ kind: 'warning', message });
}

function summarize(result: SessionResult, folder: RunFolder, output: Output): void {
  const { evaluation, rounds, trainSeconds, stopped } = result;
  const finalLoss = result.losses.at(-1) ?? null;
  output.json({
    event: 'done',
    stopped,
    rounds,
    finalLoss,
    trainSeconds,
    runFolder: folder.path,
    ...(evaluation === undefined ? {} : { testAccuracy: evaluation.accuracy, testLoss: evaluation.loss }),
  });
  if (output.isJson) return;
  const { colors } = output.terminal;
  output.terminal.print(`${stopped ? 'Stopped' : 'Done'}      ${rounds} rounds in ${duration(trainSeconds)}, last loss ${finalLoss === null ? '–' : finalLoss.toFixed(4)}`);
  output.terminal.print(`Folder    ${colors.bold(folder.path)}  (model.onnx, metrics.jsonl, checkpoints/, trace.json)`);
  if (stopped) output.terminal.print(`Go on     asteroid train --resume ${folder.path}`);
}
