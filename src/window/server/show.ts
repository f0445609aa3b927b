// The window of a finished run: the page with a recording instead of a run. There is nothing to ask of it.

import type { Clock } from '../../clock.ts';
import type { RunGuests } from '../../runtime/host/run-guests.ts';
import { WindowDoor } from './door.ts';
import { createGuests } from './guests.ts';
import { serveAlone } from './own-server.ts';
import { readPageFiles } from './page-files.ts';
import { readRecording } from './recording.ts';
import { Viewers } from './viewers.ts';

export interface ShowOptions {
  readonly folder: string;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** The link lets one browser in, which may reload it. */
  onOpen(link: () => string, isFar: boolean): void;
}

const closedText = 'the window was closed';

/** Shows a finished run until `signal` aborts. Throws InputError where the folder is no run's. */
export async function showRun({ folder, host, port, clock, signal, onOpen }: ShowOptions): Promise<void> {
  const recording = JSON.stringify(await readRecording(folder));
  const viewers = new Viewers({
    clock,
    welcome: () => recording,
    command: ({ id }, answer) => answer({ kind: 'refused', id, text: 'This run is over.' }),
  });
  let door: WindowDoor | undefined;
  const guests: RunGuests = {
    guests(server) {
      door = new WindowDoor({ clock, ...server });
      return createGuests({ files: readPageFiles(), door, viewers });
    },
    begin: ({ url, isFar }) => onOpen(() => `${url}/#${door?.mint()}`, isFar),
    end() {},
  };
  const server = await serveAlone(guests, { host, port, clock, insecure: false });
  await new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true });
    if (signal.aborted) resolve();
  });
  viewers.close(closedText);
  await server.close(closedText);
}
