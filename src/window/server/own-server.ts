// A server for the window alone: of a run without workers, and of a finished run. It has the same door as that of a run
// with workers, which opens for no device.

import type { Clock } from '../../clock.ts';
import type { RunGuests, RunHandle } from '../../runtime/host/run-guests.ts';
import { isEncrypted, staysHere } from '../../runtime/host/security/admission.ts';
import { httpCertificate } from '../../runtime/host/security/http-certificate.ts';
import { type LinkServer, listen } from '../../transport/node/websocket-server.ts';

export interface OwnServerOptions {
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly clock: Clock;
  /** Unencrypted beyond this machine. */
  readonly insecure: boolean;
  /** Files of an own certificate and key. */
  readonly tlsCert?: string;
  readonly tlsKey?: string;
}

/** Serves until it is closed. Throws InputError when the address cannot be listened on. */
export async function serveAlone(
  guests: RunGuests,
  options: OwnServerOptions,
  run: Omit<RunHandle, 'url' | 'isFar'> = {},
): Promise<Pick<LinkServer, 'close'>> {
  const { host, port, clock } = options;
  const tls = isEncrypted(options) ? await httpCertificate(options) : undefined;
  const server = await listen({
    ...{ host, port, clock, name: 'window', guests: guests.guests({ isEncrypted: tls !== undefined }) },
    ...(tls && { tls: { cert: tls.cert, key: tls.key } }),
    authenticate: () => ({ kind: 'refused', reason: 'no devices join here', retry: false }),
    onLink: (link) => void link.close('no devices join here'),
  });
  guests.begin({ ...run, url: server.url.replace(/^ws/, 'http'), isFar: !staysHere({ host }) });
  return server;
}
