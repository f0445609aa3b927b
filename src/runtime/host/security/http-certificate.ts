// The certificate of a server that anybody's client talks to: the user's own, or one of the cluster's authority with
// the addresses by which the server is reached. Clients trust the authority's certificate, which lies beside its key in
// a file that all may read.

import { writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { createIdentity } from '../../../transport/node/tls/authority.ts';
import { isWildcard, ownAddresses } from '../addresses.ts';
import { readCertificate } from './admission.ts';
import { loadAuthority } from './authority-store.ts';
import { stateFolder } from './state-folder.ts';

export interface HttpCertificate {
  readonly cert: string;
  readonly key: string;
  /** Absent where the certificate is the user's own. */
  readonly authorityFile: string | undefined;
}

/** Throws InputError for files of the user that cannot be used. */
export async function httpCertificate({
  host,
  tlsCert,
  tlsKey,
  folder = stateFolder(),
}: {
  readonly host: string;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly folder?: string;
}): Promise<HttpCertificate> {
  if (tlsCert !== undefined && tlsKey !== undefined) {
    const { certificate, key } = await readCertificate(['--http-cert', tlsCert], ['--http-key', tlsKey]);
    return { cert: certificate, key, authorityFile: undefined };
  }
  const authority = await loadAuthority(folder);
  const addresses = isWildcard(host) ? [...ownAddresses(), '127.0.0.1'] : [host];
  const names = [...new Set([...addresses, hostname(), 'localhost'])];
  const own = await createIdentity(authority, { role: 'worker', name: 'http' }, names);
  const authorityFile = join(folder, 'authority-certificate.pem');
  await writeFile(authorityFile, authority.certificate);
  return { cert: own.certificate + authority.certificate, key: own.key, authorityFile };
}
