// The novel that is trained on by default. The build packs it into the bundle.

import { gunzipSync } from 'node:zlib';

/** Moby Dick in the order of its chapters, 1.2 MB of text. */
export async function readNovel(): Promise<string> {
  const { NOVEL_GZIP } = await import('./novel.txt.gz');
  return gunzipSync(Buffer.from(NOVEL_GZIP, 'base64')).toString('utf8');
}
