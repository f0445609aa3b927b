// asteroid worker: offers this device to a coordinator.

import { createInterface } from 'node:readline/promises';
import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { createComputeThread } from '../../engine/compute-thread.ts';
import { InputError } from '../../errors.ts';
import { joinRun } from '../../runtime/worker/join.ts';
import { joinCodeVariable } from '../../runtime/worker/local-workers.ts';
import { profileCache } from '../../runtime/worker/profile-cache.ts';
import { createOutput, interruptedExitCode, interruptSignal } from '../output.ts';

interface WorkerCommandOptions {
  readonly join?: string;
  readonly code?: string;
  readonly name?: string;
  readonly host?: string;
  readonly threads: string;
  readonly engine: string;
  readonly insecure?: boolean;
  readonly managed?: boolean;
  readonly json?: boolean;
}

/** Adds the command. */
export function addWorker(program: Command): Command {
  return program
    .command('worker')
    .description('offer this device to a training run')
    .option('--join <URL>', 'the address that asteroid train printed, such as ws://192.168.1.20:7700')
    .option('--code <CODE>', `the join code that it printed (better: the variable ${joinCodeVariable}, or typed when asked)`)
    .option('--name <NAME>', 'how this device is called (default: its host name)')
    .option('--host <ADDRESS>', 'the address on which peers reach this device (default: the one that leads to the coordinator)')
    .option('--threads <N>', 'compute threads', '1')
    .option('--engine <NAME>', 'onnxruntime | reference', 'onnxruntime')
    .option('--insecure', 'allow plain, unencrypted links beyond this machine')
    .option('--managed', 'started by a coordinator on this machine: Ctrl-C is its business')
    .addHelpText('after', '\nExample:\n  $ asteroid worker --join ws://192.168.1.20:7700 --insecure\n  Join code: 7K2M-Q0ZD-XW4R-9TBC')
    .action((options: WorkerCommandOptions) => work(options));
}

async function work(options: WorkerCommandOptions): Promise<void> {
  const output = createOutput(options);
  if (options.join === undefined) throw new InputError('--join is missing: give the address that asteroid train printed.');
  const threadCount = Number(options.threads);
  if (!Number.isInteger(threadCount) || threadCount < 1)
    throw new InputError(`--threads ${options.threads} must be a whole number of at least 1.`);
  const { engine } = options;
  if (engine !== 'onnxruntime' && engine !== 'reference') throw new InputError(`--engine ${engine} must be one of onnxruntime, reference.`);
  const joinCode = options.code ?? process.env[joinCodeVariable] ?? (await askCode());
  // The coordinator of a managed worker gets the same Ctrl-C from the terminal and ends its workers in good order.
  const signal = options.managed === true ? ignoreInterrupts() : interruptSignal(output, 'Leaving …');
  const end = await joinRun({
    url: options.join,
    joinCode,
    signal,
    clock: systemClock,
    insecure: options.insecure === true,
    createEngine: () => createComputeThread({ engine, threadCount }),
    ...(options.name === undefined ? {} : { name: options.name }),
    ...(options.host === undefined ? {} : { host: options.host }),
    profileCache: profileCache(options.name ?? ''),
    onJoined: (name) => {
      output.json({ event: 'joined', name });
      if (!output.isJson) output.terminal.print(`Joined as ${name}; waiting for work. Ctrl-C leaves.`);
    },
  });
  output.json({ event: 'ended', clean: end.clean, reason: end.reason });
  if (!output.isJson) output.terminal.print(`Ended: ${end.reason}.`);
  process.exitCode = signal.aborted ? interruptedExitCode : end.clean ? 0 : 1;
}

function ignoreInterrupts(): AbortSignal {
  process.on('SIGINT', () => {});
  return new AbortController().signal;
}

async function askCode(): Promise<string> {
  if (!process.stdin.isTTY) throw new InputError(`The join code is missing: give --code, or set ${joinCodeVariable}.`);
  const lines = createInterface({ input: process.stdin, output: process.stderr });
  try {
    return await lines.question('Join code: ');
  } finally {
    lines.close();
  }
}
