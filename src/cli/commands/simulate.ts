// asteroid simulate: a plan on a virtual clock, one round or a stream of them.

import type { Command } from 'commander';
import { checkTogether, parseCluster, parsePlan } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { withTangentMemory } from '../../planner/forward-gradient.ts';
import { withCopies } from '../../planner/replan/room-for-copies.ts';
import { checkProgram } from '../../schedule/check.ts';
import { ganttSvg } from '../../schedule/gantt.ts';
import { program as makeProgram } from '../../schedule/generate.ts';
import { tangentSchedule } from '../../schedule/schedules.ts';
import { traceJson } from '../../schedule/trace.ts';
import { simulate as runSimulation } from '../../simulator/simulate.ts';
import type { Simulation } from '../../simulator/simulation.ts';
import { optimizerKinds } from '../../training/update-rules.ts';
import { addCopiesFlag, isCopied } from '../copies-flag.ts';
import { checkWritable, readText, writeJson, writeText } from '../files.ts';
import { refuseOverload } from '../memory-check.ts';
import { addSizeFlags, type SizeOptions } from '../model-options.ts';
import { createOutput } from '../output.ts';
import { planningProfile } from '../planning-profile.ts';
import { bar, memory, type Terminal } from '../terminal.ts';
import { optimizerState as optimizerStateOf } from './plan.ts';

interface SimulateCommandOptions extends SizeOptions {
  readonly cluster?: string;
  readonly profile?: string;
  readonly model?: string;
  readonly plan?: string;
  readonly optimizer: string;
  readonly momentum: string;
  readonly replicateEvery?: string;
  readonly trace?: string;
  readonly gantt?: string;
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addSimulate(program: Command): Command {
  const command = program
    .command('simulate')
    .description('simulate a round of a plan, or the steady state of a stream of rounds')
    .option('--cluster <FILE>', 'the devices and links, JSON or YAML')
    .option('--profile <FILE>', 'the layers and their times')
    .option(
      '--model <FILE>',
      'instead of --profile: an ONNX model, or the name of a built-in one; times from the kinds of the devices',
    )
    .option('--plan <FILE>', 'the plan, or what asteroid plan wrote')
    .option('--optimizer <NAME>', `${optimizerKinds.join(' | ')}, for the memory that it needs`, 'sgd')
    .option('--momentum <M>', 'of sgd, for the memory that it needs', '0')
    .option('--trace <FILE>', 'write a trace for Perfetto or chrome://tracing')
    .option('--gantt <FILE>', 'write a chart of the round, or of the stream from its first round to its last, as SVG')
    .option('-o, --output <FILE>', 'write what --json prints');
  return addSizeFlags(addCopiesFlag(command))
    .addHelpText(
      'after',
      '\nExample:\n  $ asteroid simulate --cluster cluster.yaml --profile profile.json --plan plan.json ' +
        '--trace trace.json',
    )
    .action((options: SimulateCommandOptions) => simulate(options));
}

async function simulate(options: SimulateCommandOptions): Promise<void> {
  const output = createOutput(options);
  const { cluster: clusterPath, plan: planPath, trace, gantt } = options;
  if (clusterPath === undefined) throw new InputError('--cluster is missing: give the file.');
  if (planPath === undefined) throw new InputError('--plan is missing: give the file.');
  for (const path of [options.output, trace, gantt]) if (path !== undefined) await checkWritable(path);
  const cluster = parseCluster(await readText(clusterPath), clusterPath);
  const plan = parsePlan(await readText(planPath), planPath);
  if (plan.schedule === 'hetpipe')
    throw new InputError(
      `${planPath} is a plan of planner "hetpipe", which is not a pipeline of stages; simulate one of another planner.`,
    );
  const isTangent = plan.schedule === tangentSchedule;
  const tangentCount = isTangent ? (plan.tangentCount ?? 1) : undefined;
  const profile = await planningProfile(
    { ...options, largestBatch: plan.microBatchSize, tangentCount },
    cluster,
    output,
  );
  checkTogether(plan, profile, cluster);
  const program = makeProgram(plan);
  checkProgram(program, plan);
  const optimizerState = optimizerStateOf(options.optimizer, options.momentum);
  const held = tangentCount === undefined ? profile : withTangentMemory(profile, tangentCount, optimizerState);
  const simulated = runSimulation(program, plan, held, cluster, {
    events: trace !== undefined || gantt !== undefined,
    optimizerState: isTangent ? 0 : optimizerState,
  });
  const { events, roundMs, samplesPerS, stream, links } = simulated;
  const copies = { profile, optimizerState, isCopied: isCopied(options) };
  const alone = Object.entries(simulated.devices).map(([name, { peakMemoryMiB }]) => [name, peakMemoryMiB] as const);
  const predicted = { roundMs, samplesPerS, peakMemoryMiB: Object.fromEntries(alone) };
  const { peakMemoryMiB } = withCopies({ ...plan, predicted }, copies).predicted;
  const devices = Object.fromEntries(
    Object.entries(simulated.devices).map(([name, device]) => [
      name,
      { ...device, peakMemoryMiB: peakMemoryMiB[name] ?? device.peakMemoryMiB },
    ]),
  );
  refuseOverload(peakMemoryMiB, cluster, planPath);
  const names = cluster.devices.map((device) => device.name);
  if (trace !== undefined) await writeText(trace, traceJson(events, names));
  if (gantt !== undefined)
    await writeText(gantt, ganttSvg(events, names, { title: `${profile.model}: ${roundMs.toFixed(1)} ms a round` }));
  const document = { roundMs, samplesPerS, ...(stream === undefined ? {} : { stream }), devices, links };
  if (options.output !== undefined) await writeJson(options.output, document);
  output.json(document);
  if (output.isJson) return;
  print(document, output.terminal);
}

function print({ roundMs, samplesPerS, stream, devices, links }: Omit<Simulation, 'events'>, terminal: Terminal): void {
  terminal.section('Round', `${roundMs.toFixed(3)} ms, ${samplesPerS.toFixed(1)} samples/s`);
  if (stream !== undefined)
    terminal.section(
      'Stream',
      `a round every ${roundMs.toFixed(3)} ms${stream.isExact ? '' : ' in the mean'}; ` +
        `filling takes ${stream.fillMs.toFixed(3)} ms, draining ${stream.drainMs.toFixed(3)} ms`,
    );
  const width = Math.max(...Object.keys(devices).map((name) => name.length));
  for (const [name, { idleFraction, peakMemoryMiB, energyJ }] of Object.entries(devices)) {
    const busy = `${((1 - idleFraction) * 100).toFixed(0)} %`.padStart(5);
    const energy = energyJ === undefined ? '' : `  ${energyJ.toFixed(1)} J`;
    terminal.section(
      'Devices',
      `${name.padEnd(width)}  ${bar(1 - idleFraction, 30)} ${busy} busy  ${memory(peakMemoryMiB)}${energy}`,
    );
  }
  for (const [name, link] of Object.entries(links)) {
    terminal.section('Links', `${name}  ${(link.bytes / 2 ** 20).toFixed(2)} MiB, busy ${link.busyMs.toFixed(2)} ms`);
  }
}
