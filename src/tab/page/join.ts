// The page on which a browser becomes a device. What it says before it joins: that it must stay in front, what it
// costs, and what speaks against it here (little battery, a browser that saves data).

import type { DeviceChoice } from '../../engine/engine.ts';
import type { PageFacts } from '../serve-page.ts';
import type { FromCompute, ToCompute } from './messages.ts';

interface Battery {
  readonly level: number;
  readonly charging: boolean;
}

/** What some browsers have, and TypeScript's own list has not. */
interface MoreNavigator {
  readonly deviceMemory?: number;
  readonly connection?: { readonly saveData?: boolean };
  getBattery?(): Promise<Battery>;
}

/** Below this a device that runs on its battery is not asked to compute. */
const leastBattery = 0.2;
/** Memory of WebAssembly, at most, in MiB; and of a device that does not say what it has. */
const [mostMemoryMiB, unknownMemoryMiB] = [3072, 2048] as const;
const leaveMs = 15_000;
const mostThreads = 4;
const mostSentences = 20;

const element = <E extends HTMLElement>(id: string): E => document.getElementById(id) as E;
const [form, code, name] = [
  element<HTMLFormElement>('form'),
  element<HTMLInputElement>('code'),
  element<HTMLInputElement>('name'),
];
const [device, anyway, warning, state, place, leave] = [
  element<HTMLSelectElement>('device'),
  element<HTMLInputElement>('anyway'),
  element('warning'),
  element('state'),
  element('place'),
  element('leave'),
];
const more = navigator as Navigator & MoreNavigator;

let compute: Worker | undefined;
let hasJoined = false;
/** How often to try again when the connection was lost, each time after a longer pause. */
const [mostTries, againMs] = [20, 1000] as const;
let triesLeft: number = mostTries;
let again: ReturnType<typeof setTimeout> | undefined;
let wakeLock: WakeLockSentinel | undefined;
/** What the thread said last; the text under the form follows it. */
let last = '';

const battery = (): Promise<Battery | undefined> =>
  more.getBattery?.().catch(() => undefined) ?? Promise.resolve(undefined);

/** What speaks against joining, in words. */
async function objections(): Promise<string[]> {
  const power = await battery();
  const found: string[] = [];
  if (power !== undefined && !power.charging && power.level < leastBattery)
    found.push(`The battery is at ${Math.round(power.level * 100)} %: plug the device in first.`);
  else if (power !== undefined && !power.charging) found.push('The device runs on its battery.');
  if (more.connection?.saveData === true) found.push('The browser saves data, and this takes 4 MB and more.');
  return found;
}

function show(text: string): void {
  last = text;
  const isBehind = document.hidden && compute !== undefined;
  state.textContent = isBehind ? `${text} This page is in the background: bring it to the front.` : text;
}

async function keepAwake(): Promise<void> {
  if (compute === undefined || document.hidden || !('wakeLock' in navigator)) return;
  wakeLock = await navigator.wakeLock.request('screen').catch(() => undefined);
}

async function facts(): Promise<PageFacts> {
  const power = await battery();
  const memoryMiB = more.deviceMemory === undefined ? unknownMemoryMiB : more.deviceMemory * 512;
  return {
    memoryMiB: Math.min(mostMemoryMiB, Math.max(256, Math.floor(memoryMiB))),
    cores: navigator.hardwareConcurrency,
    machine: `page ${Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16)).join('')}`,
    ...(power === undefined ? {} : { batteryPercent: Math.round(power.level * 100), isDischarging: !power.charging }),
  };
}

function heard(message: FromCompute): void {
  switch (message.kind) {
    case 'loading':
      return show('Loading the engine…');
    case 'joining':
      return show('Joining…');
    case 'joined':
      leave.hidden = false;
      hasJoined = true;
      triesLeft = mostTries;
      return show(`Joined as ${message.name}.`);
    case 'place':
      return placed(message.text);
    case 'busy': {
      const joined = /^Joined as .*?\./.exec(last)?.[0];
      return joined === undefined
        ? undefined
        : show(`${joined} It computes ${Math.round(message.share * 100)} % of the time.`);
    }
    case 'ended':
      if (message.isLost && hasJoined) return lost(message.reason);
      return ended(`${message.isClean ? 'Ended' : 'Could not go on'}: ${message.reason}`);
  }
}

/** The connection is gone, after the page was away, say: joins again, as another device. */
function lost(reason: string): void {
  compute?.terminate();
  if (triesLeft === 0) return ended(`Could not go on: ${reason}`);
  show(`The connection was lost (${reason}). Trying again…`);
  again = setTimeout(() => void join(), againMs * (mostTries - triesLeft + 1));
  triesLeft--;
}

/** One more sentence on what computes here. Of kernels that the graphics chip does not have there may be many. */
function placed(text: string): void {
  if (place.childElementCount >= mostSentences) return;
  place.append(Object.assign(document.createElement('li'), { textContent: text }));
}

function ended(text: string): void {
  clearTimeout(again);
  hasJoined = false;
  compute?.terminate();
  compute = undefined;
  void wakeLock?.release();
  place.replaceChildren();
  form.hidden = false;
  leave.hidden = true;
  show(text);
}

/** Threads share memory, which only isolated pages may; half of the cores are left to the device's other work. */
function threadCount(): number {
  return crossOriginIsolated ? Math.min(mostThreads, Math.max(1, navigator.hardwareConcurrency >> 1)) : 1;
}

async function join(): Promise<void> {
  form.hidden = true;
  warning.hidden = true;
  place.replaceChildren();
  compute = new Worker('/compute.js', { type: 'module' });
  compute.onmessage = ({ data }: MessageEvent<FromCompute>) => heard(data);
  compute.onerror = ({ message }) => ended(`Could not go on: ${message || 'the engine does not load here'}`);
  const message: ToCompute = {
    ...{ kind: 'join', joinCode: code.value, name: name.value.trim(), facts: await facts() },
    url: `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/device`,
    engine: { device: device.value as DeviceChoice, threadCount: threadCount() },
  };
  compute.postMessage(message);
  await keepAwake();
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  void objections().then((found) => {
    warning.textContent = found.join(' ');
    warning.hidden = found.length === 0;
    element('anyway-label').hidden = found.length === 0;
    if (found.length === 0 || anyway.checked) void join();
  });
});
leave.addEventListener('click', () => {
  show('Leaving: the others take over its work…');
  compute?.postMessage({ kind: 'leave' } satisfies ToCompute);
  const leaving = compute;
  setTimeout(() => leaving !== undefined && leaving === compute && ended('Left.'), leaveMs);
});
document.addEventListener('visibilitychange', () => {
  show(last);
  void keepAwake();
});
// The code comes in the fragment, which browsers keep to themselves; behind it may stand what to compute on:
// #CODE&device=gpu.
const [given = '', ...wishes] = location.hash.slice(1).split('&');
code.value = decodeURIComponent(given);
if (location.hash !== '') history.replaceState(null, '', location.pathname);
const wished = new URLSearchParams(wishes.join('&')).get('device');
if ([...device.options].some(({ value }) => value === wished)) device.value = String(wished);
name.value = /Android|iPhone|iPad/.exec(navigator.userAgent)?.[0]?.toLowerCase() ?? 'browser';
