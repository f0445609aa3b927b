// A stage's graphs, translated for an engine, with what is to be known of them, as bytes: what is kept of a compiled
// stage from one process to another.

import type { Translation } from '../../engine/engine.ts';
import type { ByGraph, PassNotes, StageGraphName } from './stage-graphs.ts';

/** All of a stage that takes long to find. */
export interface StageBundle {
  readonly pass: PassNotes | undefined;
  readonly translations: ByGraph<Translation>;
}

/** The part of a bundle that is JSON; the models follow in its order. */
interface Header {
  readonly pass?: PassNotes | undefined;
  readonly graphs: readonly (Omit<Translation, 'model'> & {
    readonly graph: StageGraphName;
    readonly modelBytes: number;
  })[];
}

const lengthBytes = 4;

/** The bundle as bytes, in pieces: the length of the header (32 bits, little endian), the header, the models. */
export function encodeBundle({ pass, translations }: StageBundle): readonly Uint8Array[] {
  const entries = Object.entries(translations) as [StageGraphName, Translation][];
  const graphs = entries.map(([graph, { model, ...rest }]) => ({ ...rest, graph, modelBytes: model.length }));
  const header = new TextEncoder().encode(JSON.stringify({ pass, graphs } satisfies Header));
  const length = new Uint8Array(lengthBytes);
  new DataView(length.buffer).setUint32(0, header.length, true);
  return [length, header, ...entries.map(([, { model }]) => model)];
}

/** The bundle again. The bytes must be those that `encodeBundle` wrote, whole. */
export function decodeBundle(bytes: Uint8Array): StageBundle {
  const end = lengthBytes + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { pass, graphs } = JSON.parse(new TextDecoder().decode(bytes.subarray(lengthBytes, end))) as Header;
  const translations: [StageGraphName, Translation][] = [];
  let offset = end;
  for (const { graph, modelBytes, ...rest } of graphs) {
    translations.push([graph, { ...rest, model: bytes.subarray(offset, offset + modelBytes) }]);
    offset += modelBytes;
  }
  return { pass, translations: Object.fromEntries(translations) };
}
