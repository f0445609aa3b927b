// The join code in a file, for workers that a script starts.

import { writeSecret } from '../runtime/host/security/state-folder.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import type { Output } from './output.ts';

/** Writes the join code to a file for scripts; it appears whole, readable by its owner only. */
export function withCodeFile(path: string, output: Output): Output {
  const observe = (event: RunEvent): void => {
    if (event.kind === 'listening') {
      writeSecret(path, `${event.joinCode}\n`).catch((error: unknown) =>
        output.observe({ kind: 'warning', message: error instanceof Error ? error.message : String(error) }),
      );
    }
    output.observe(event);
  };
  return { ...output, observe };
}
