// Frames of a layout that was announced to peers before this device: they wait for the announcement, up to the bytes of
// the model's whole state.

import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';

const frameLimit = 100_000;

interface EarlyFrame {
  readonly from: string;
  readonly frame: Frame;
}

export class EarlyFrames {
  #frames: EarlyFrame[] = [];
  #bytes = 0;

  /** Throws ProtocolError beyond the limit. */
  keep(from: string, frame: Frame, limitBytes: number): void {
    this.#bytes += (frame.tensors ?? []).reduce((sum, tensor) => sum + tensor.data.byteLength, 0);
    if (this.#bytes > limitBytes || this.#frames.length >= frameLimit)
      throw new ProtocolError(
        `${from} sent more than the ${limitBytes} bytes that may wait here for a layout ` +
          'that the coordinator has not announced.',
      );
    this.#frames.push({ from, frame });
  }

  /** Takes out all frames, in the order in which they came. */
  take(): readonly EarlyFrame[] {
    const frames = this.#frames;
    [this.#frames, this.#bytes] = [[], 0];
    return frames;
  }
}
