// A process that has a cache of tokens open, and is making some when it is killed.

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { TokenCache } from '../../src/data/token-cache.js';

const cache = await TokenCache.open(process.argv[2]!);
const part = cache.newPart();
mkdirSync(part);
writeFileSync(join(part, 'tokens.bin'), 'half of them');
for (const key of process.argv.slice(3)) {
  await cache.use(key);
}
process.stdout.write(part);
process.stdin.resume(); // lives until it is killed, or its parent dies
