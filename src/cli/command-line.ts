// One command from its arguments to its exit code: parses, calls the library, and says in one sentence what was wrong.

import { CommanderError } from 'commander';
import { InputError, ProtocolError, RunError } from '../errors.ts';
import { createProgram } from './program.ts';

/**
 * Processes that commands start, whose code is in the command's bundle: it is compiled already (tools/bundle.mjs).
 * @public
 */
export const processes = {
  'profile-apart': (): Promise<unknown> => import('../runtime/host/profile-apart-entry.ts'),
} as const;

/** How a command ended. */
export interface CommandOutcome {
  /** 0 when done, 1 when it failed, 2 when the input is wrong, 130 after Ctrl-C. */
  readonly exitCode: number;
  /** For stderr: what went wrong; one line, unless it is a bug, which shows its stack. */
  readonly error?: string;
}

/** Runs `asteroid ...words`, which prints on stdout and, with --json, on stderr. Never rejects. */
export async function runCommandLine(words: readonly string[]): Promise<CommandOutcome> {
  process.exitCode = undefined;
  try {
    const program = await createProgram(words[0]);
    if (words.length === 0) program.outputHelp();
    else await program.parseAsync(words, { from: 'user' });
    return { exitCode: Number(process.exitCode ?? 0) };
  } catch (error) {
    return outcomeOf(error, words.includes('--verbose'));
  }
}

function outcomeOf(error: unknown, isVerbose: boolean): CommandOutcome {
  // Help and version were asked for and are printed.
  if (error instanceof CommanderError && error.exitCode === 0) return { exitCode: 0 };
  const isInput = error instanceof InputError || error instanceof CommanderError;
  const isExpected = isInput || error instanceof RunError || error instanceof ProtocolError;
  const text =
    error instanceof CommanderError ? usageError(error) : error instanceof Error ? error.message : String(error);
  const detail = isExpected && !isVerbose ? sentence(text) : error instanceof Error ? (error.stack ?? text) : text;
  return { exitCode: isInput ? 2 : 1, error: `asteroid: ${detail}` };
}

/** Commander's "error: unknown option '--x'\n(Did you mean --y?)" in one line, with the fix. */
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
