// The devices: what each computes, how busy it is, and its memory beside what the plan expects.

import { useState } from 'preact/hooks';
import { counted, memory } from '../../measures.ts';
import type { DeviceView, View } from '../view.ts';
import { Dialog } from './dialog.tsx';
import { type Answer, ask } from './source.ts';

/** The devices that are or were in the run. */
export function Devices({ view, canDrain }: { readonly view: View; readonly canDrain: boolean }) {
  const [drained, setDrained] = useState<string | undefined>();
  return (
    <section class="card devices" aria-labelledby="devices-title">
      <h2 id="devices-title">Devices</h2>
      <ul>
        {view.devices.map((device) => (
          <Device key={device.name} view={view} device={device} onDrain={canDrain ? setDrained : undefined} />
        ))}
      </ul>
      {drained !== undefined && <DrainDialog device={drained} onClose={() => setDrained(undefined)} />}
    </section>
  );
}

interface DeviceProps {
  readonly view: View;
  readonly device: DeviceView;
  readonly onDrain: ((device: string) => void) | undefined;
}

function Device({ view, device, onDrain }: DeviceProps) {
  const { name, isPresent, busy, cores, usedCores, memoryMiB, peakMemoryMiB, residentMiB, engine, detail } = device;
  const used = (residentMiB ?? peakMemoryMiB) || null; // 0: the device cannot tell, as a browser
  const isUsed = view.plan?.stages.some(({ devices }) => devices.includes(name)) === true;
  return (
    <li class={isPresent ? 'device' : 'device gone'}>
      <div class="device-head">
        <b>{name}</b>
        <span class="dim">{isPresent ? roleOf(view, name) : 'left'}</span>
        <span class="spacer" />
        {isPresent && isUsed && onDrain !== undefined && (
          <button type="button" class="small" onClick={() => onDrain(name)} aria-label={`Drain ${name}`}>
            Drain
          </button>
        )}
      </div>
      <Meter name="Computing" fraction={busy ?? 0} text={busy === null ? '–' : `${Math.round(busy * 100)} %`} />
      <Meter
        name="Processor"
        fraction={usedCores === null ? 0 : usedCores / Math.max(cores, 1e-3)}
        text={usedCores === null ? counted(cores, 'core') : `${usedCores.toFixed(2)} of ${counted(cores, 'core')}`}
      />
      <Meter
        name="Memory"
        fraction={used === null ? 0 : used / Math.max(1, memoryMiB)}
        text={used === null ? memory(memoryMiB) : `${memory(used)} of ${memory(memoryMiB)}`}
      />
      <p class="dim detail">{[detail, engine].filter((text) => text !== '').join(' · ')}</p>
    </li>
  );
}

function Meter({ name, fraction, text }: { readonly name: string; readonly fraction: number; readonly text: string }) {
  return (
    <div class="meter">
      <span>{name}</span>
      <progress max="1" value={Math.min(1, fraction)} aria-label={name} />
      <span class="value">{text}</span>
    </div>
  );
}

function roleOf({ plan }: View, device: string): string {
  for (const [index, { devices, samples }] of plan?.stages.entries() ?? []) {
    const place = devices.indexOf(device);
    if (place < 0) continue;
    return devices.length > 1
      ? `stage ${index}, ${samples[place]} of ${plan?.microBatchSize} samples`
      : `stage ${index}`;
  }
  return 'in reserve';
}

function DrainDialog({ device, onClose }: { readonly device: string; onClose(): void }) {
  const [answer, setAnswer] = useState<Answer>();
  const drain = async (): Promise<void> => setAnswer(await ask({ command: 'drain', device }));
  return (
    <Dialog title={`Go on without ${device}?`} onClose={onClose}>
      <p>Its work moves to the others between two rounds, then it leaves. Nothing is computed twice.</p>
      <p role="status">{answer?.text ?? ''}</p>
      <form method="dialog" class="actions">
        <button type="submit">Close</button>
        <button type="button" class="primary" disabled={answer?.isDone === true} onClick={() => void drain()}>
          Drain {device}
        </button>
      </form>
    </Dialog>
  );
}
