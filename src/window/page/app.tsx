// The page: what a run is doing, from the whole to its parts.

import { useEffect, useState } from 'preact/hooks';
import { Curves } from './curves.tsx';
import { Devices } from './devices.tsx';
import { Header } from './header.tsx';
import { Notes } from './notes.tsx';
import { Pipeline } from './pipeline.tsx';
import { Replay } from './replay.tsx';
import { source, subscribe } from './source.ts';
import { Times } from './times.tsx';
import { WhatIf } from './what-if.tsx';

/** Everything, once there is a view. */
export function App() {
  const [, setVersion] = useState(0);
  useEffect(() => subscribe(() => setVersion((version) => version + 1)), []);
  const { view, connection, can, recording } = source;
  if (connection === 'refused')
    return (
      <main class="alone">
        <h1>This window is closed</h1>
        <p>
          Open the link that the run printed. Each link lets one browser in: if it has been used, a window that is open
          gives another, under “Open elsewhere”.
        </p>
      </main>
    );
  if (view === undefined)
    return (
      <p class="alone">{connection === 'lost' ? 'The run does not answer. Trying again…' : 'Opening the window…'}</p>
    );
  return (
    <>
      <Header view={view} can={can} connection={connection} isRecording={recording !== undefined} />
      <main class="grid">
        {recording !== undefined && <Replay view={view} recording={recording} />}
        <div class="column">
          <Pipeline view={view} />
          <Curves view={view} />
          <Times view={view} />
        </div>
        <div class="column">
          <Devices view={view} canDrain={can.drain} />
          {can.whatIf && <WhatIf view={view} />}
          <Notes view={view} />
        </div>
      </main>
    </>
  );
}
