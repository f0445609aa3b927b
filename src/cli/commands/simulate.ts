// asteroid simulate: one round of a plan on a virtual clock.

import type { Command } from 'commander';
import { checkTogether, parseCluster, parsePlan, parseProfile } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program as makeProgram } from '../../schedule/generate.ts';
import { traceJson } from '../../schedule/trace.ts';
import { simulate as runSimulation, type Simulation } from '../../simulator/simulate.ts';
import { readText, writeJson, writeText } from '../files.ts';
import { createOutput } from '../output.ts';
import { bar, memory, type Terminal } from '../terminal.ts';

interface SimulateCommandOptions {
  readonly cluster?: string;
  readonly profile?: string;
  readonly plan?: string;
  readonly trace?: string;
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addSimulate(program: Command): Command {
  return program
    .command('simulate')
    .description('simulate one round of a plan')
    .option('--cluster <FILE>', 'the devices and links, JSON or YAML')
    .option('--profile <FILE>', 'the layers and their times')
    .option('--plan <FILE>', 'the plan, or what asteroid plan wrote')
    .option('--trace <FILE>', 'write a trace for Perfetto or chrome://tracing')
    .option('-o, --output <FILE>', 'write what --json prints')
    .addHelpText(
      'after',
      '\nExample:\n  $ asteroid simulate --cluster cluster.yaml --profile profile.json --plan plan.json --trace trace.json',
    )
    .action((options: SimulateCommandOptions) => simulate(options));
}

async function simulate(options: SimulateCommandOptions): Promise<void> {
  const output = createOutput(options);
  const [clusterPath, profilePath, planPath] = (['cluster', 'profile', 'plan'] as const).map((name) => {
    const path = options[name];
    if (path === undefined) throw new InputError(`--${name} is missing: give the file.`);
    return path;
  }) as [string, string, string];
  const cluster = parseCluster(await readText(clusterPath), clusterPath);
  const profile = parseProfile(await readText(profilePath), profilePath);
  const plan = parsePlan(await readText(planPath), planPath);
  checkTogether(plan, profile, cluster);
  const program = makeProgram(plan);
  checkProgram(program, plan);
  const { events, roundMs, samplesPerS, devices, links } = runSimulation(program, plan, profile, cluster);
  if (options.trace !== undefined)
    await writeText(
      options.trace,
      traceJson(
        events,
        cluster.devices.map((device) => device.name),
      ),
    );
  const document = { roundMs, samplesPerS, devices, links };
  if (options.output !== undefined) await writeJson(options.output, document);
  output.json(document);
  if (output.isJson) return;
  print(document, output.terminal);
}

function print(
  { roundMs, samplesPerS, devices, links }: Pick<Simulation, 'roundMs' | 'samplesPerS' | 'devices' | 'links'>,
  terminal: Terminal,
): void {
  terminal.section('Round', `${roundMs.toFixed(3)} ms, ${samplesPerS.toFixed(1)} samples/s`);
  const width = Math.max(...Object.keys(devices).map((name) => name.length));
  for (const [name, { idleFraction, peakMemoryMiB }] of Object.entries(devices)) {
    const busy = `${((1 - idleFraction) * 100).toFixed(0)} %`.padStart(5);
    terminal.section('Devices', `${name.padEnd(width)}  ${bar(1 - idleFraction, 30)} ${busy} busy  ${memory(peakMemoryMiB)}`);
  }
  for (const [name, link] of Object.entries(links)) {
    terminal.section('Links', `${name}  ${(link.bytes / 2 ** 20).toFixed(2)} MiB, busy ${link.busyMs.toFixed(2)} ms`);
  }
}
