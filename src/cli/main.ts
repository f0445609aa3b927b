#!/usr/bin/env node
// The command `asteroid`: parses, calls the library, prints. Exits 0 when done, 1 when it failed, 2 when the input is wrong, 130 after Ctrl-C.

import { CommanderError } from 'commander';
import { InputError, ProtocolError, RunError } from '../errors.ts';
import { createProgram } from './program.ts';

const program = createProgram();

/** Runs the command line; the exit code. */
async function main(): Promise<number> {
  try {
    if (process.argv.length <= 2) program.outputHelp();
    else await program.parseAsync();
    return process.exitCode === undefined ? 0 : Number(process.exitCode);
  } catch (error) {
    return report(error);
  }
}

/** Tells what went wrong, in one line where it is no mistake of ours; the exit code. */
function report(error: unknown): number {
  // Help and version were asked for and are printed.
  if (error instanceof CommanderError && error.exitCode === 0) return 0;
  const isInput = error instanceof InputError || error instanceof CommanderError;
  const isExpected = isInput || error instanceof RunError || error instanceof ProtocolError;
  const isVerbose = process.argv.includes('--verbose');
  const text = error instanceof CommanderError ? usageError(error) : error instanceof Error ? error.message : String(error);
  const detail = isExpected && !isVerbose ? sentence(text) : error instanceof Error ? (error.stack ?? text) : text;
  process.stderr.write(`asteroid: ${detail}\n`);
  return isInput ? 2 : 1;
}

/** Commander's "error: unknown option '--x'\n(Did you mean --y?)" in one line, with the mend. */
function usageError(error: CommanderError): string {
  const text = error.message
    .replace(/^error: /, '')
    .replace(/\n\(Did you mean (.*)\?\)/, ' (did you mean $1?)')
    .replace(/\. Expected (\d+) arguments? but got (\d+)/, ' (it takes $1, not $2)');
  return `${text.replace(/\.$/, '')}: see --help for the flags and an example`;
}

function sentence(text: string): string {
  const line = text.trim().replace(/\s*\n\s*/g, ' ');
  // A command to copy gets no full stop.
  return /[.!?…]$|: npx \S.*$/.test(line) ? line : `${line}.`;
}

// Whoever reads our output has gone (`| head`): stop as if asked to, once.
process.stdout.once('error', () => process.kill(process.pid, 'SIGTERM'));
process.stdout.on('error', () => {});

process.exitCode = await main();
