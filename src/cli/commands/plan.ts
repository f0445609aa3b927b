// asteroid plan: who computes which layers on which share of each batch.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import type { Cluster, Profile } from '../../cluster/cluster.ts';
import { parseCluster, parseProfile } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { plan as makePlan } from '../../planner/plan.ts';
import { loadModel } from '../../runtime/models.ts';
import { measureHere } from '../../runtime/profile-here.ts';
import { checkWritable, readText, writeJson } from '../files.ts';
import { createOutput, type Output } from '../output.ts';
import { showPicture } from '../report.ts';
import { duration } from '../terminal.ts';
import { positive, progress } from './profile.ts';

interface PlanCommandOptions {
  readonly model?: string;
  readonly profile?: string;
  readonly cluster?: string;
  readonly batch?: string;
  readonly microBatch?: string;
  readonly schedule: string;
  readonly planner: string;
  readonly optimizer: string;
  readonly momentum: string;
  readonly replicateBatchNorm?: boolean;
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addPlan(program: Command): Command {
  return program
    .command('plan')
    .description('plan a hybrid pipeline for a cluster')
    .option('--profile <FILE>', 'a profile that asteroid profile or a run wrote')
    .option('--model <FILE>', 'instead of --profile: measure this model here and take every device for one like this')
    .option('--cluster <FILE>', 'the devices and links, JSON or YAML')
    .option('--batch <N>', 'samples of an update')
    .option('--micro-batch <N>', 'samples that travel at once (default: the best)')
    .option('--schedule <NAME>', '1f1b | gpipe', '1f1b')
    .option('--planner <NAME>', 'asteroid | straight | dp | single', 'asteroid')
    .option('--optimizer <NAME>', 'sgd | adam | adamw, for the memory that it needs', 'sgd')
    .option('--momentum <M>', 'of sgd, for the memory that it needs', '0')
    .option('--replicate-batch-norm', 'let a stage with batch normalization be replicated')
    .option('-o, --output <FILE>', 'write what --json prints')
    .addHelpText('after', '\nExample:\n  $ asteroid plan --profile profile.json --cluster cluster.yaml --batch 64 -o plan.json')
    .action((options: PlanCommandOptions) => plan(options));
}

async function plan(options: PlanCommandOptions): Promise<void> {
  const output = createOutput(options);
  const { cluster: clusterPath, batch } = options;
  if (clusterPath === undefined) throw new InputError('--cluster is missing: give a file with devices and links.');
  if (batch === undefined) throw new InputError('--batch is missing: give the samples of an update.');
  if (options.output !== undefined) await checkWritable(options.output);
  const cluster = parseCluster(await readText(clusterPath), clusterPath);
  const profile = await profileFor(options, cluster, output);
  const startMs = systemClock.now();
  const found = makePlan({
    profile,
    cluster,
    batchSize: positive('--batch', batch),
    schedule: options.schedule,
    planner: options.planner,
    optimizerState: optimizerState(options.optimizer, options.momentum),
    replicateBatchDependent: options.replicateBatchNorm === true,
    ...(options.microBatch === undefined ? {} : { microBatchSize: positive('--micro-batch', options.microBatch) }),
  });
  const document = { plan: found, planningMs: systemClock.now() - startMs };
  if (options.output !== undefined) await writeJson(options.output, document);
  output.json(document);
  if (output.isJson) return;
  const { terminal } = output;
  terminal.section('Plan', `by planner "${found.planner}" in ${duration(document.planningMs / 1000)}`);
  showPicture(
    found,
    profile.layers.map((layer) => layer.name),
    terminal,
  );
}

async function profileFor({ profile, model, batch }: PlanCommandOptions, cluster: Cluster, output: Output): Promise<Profile> {
  if (profile !== undefined && model !== undefined) throw new InputError('--profile and --model cannot both be given: choose one.');
  if (profile !== undefined) return parseProfile(await readText(profile), profile);
  if (model === undefined) throw new InputError('--profile or --model is missing: give a profile, or a model to measure here.');
  const device = 'this-device';
  if (!output.isJson) output.terminal.section('Note', 'every device of the cluster is taken for one like this');
  const measured = await measureHere(await loadModel(model, 0), {
    largestBatch: Math.min(64, positive('--batch', batch ?? '')),
    device,
    threads: 1,
    engine: 'onnxruntime',
    clock: systemClock,
    onProgress: progress(output),
  });
  output.terminal.live([]);
  const times = measured.devices[device];
  if (times === undefined) return measured;
  return { ...measured, devices: Object.fromEntries(cluster.devices.map(({ name }) => [name, times])) };
}

function optimizerState(optimizer: string, momentum: string): 0 | 1 | 2 {
  if (optimizer === 'adam' || optimizer === 'adamw') return 2;
  if (optimizer !== 'sgd') throw new InputError(`--optimizer ${optimizer} must be one of sgd, adam, adamw.`);
  return Number(momentum) > 0 ? 1 : 0;
}
