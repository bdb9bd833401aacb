// Shows kernels: the WGSL that is compiled, its size, workgroup, bindings and workgroup memory, and
// where Mesa's RADV is installed what an RDNA 3 chip would run. All words must occur in a kernel's
// name; the whole name shows that kernel alone. Without words it lists names and sizes. It needs
// the built packages.
// Usage: npm run kernels -- [--profile hardware|software] [WORD ...]

import { parseArgs } from 'node:util';
import { hardwareKernels } from './hardware-kernels.mjs';
import { listOf, matching, nearest, pagesOf } from './kernel-pages.mjs';
import { CHECKED_DRIVER, compileKernels, whyNoCompiler } from './navi31.mjs';

const PROFILES = ['hardware', 'software'];

// A reader that has seen enough, such as `head`, is no failure.
process.stdout.on('error', (error) => process.exit(error.code === 'EPIPE' ? 0 : 1));
const { profile, words } = readArguments();
const all = await hardwareKernels({ kernelProfile: profile });
const kernels = matching(all, words);
if (kernels.length === 0) {
  const near = nearest(all, words).map((label) => `\n  ${label}`);
  fail(
    1,
    `expected words of a name of the ${all.length} kernels for ${profile}, got "${words.join(' ')}", which no name has together. The nearest:${near.join('')}\nWithout words all names are listed.`,
  );
}
print(words.length === 0 ? listOf(kernels) : pagesOf(kernels, compiled(kernels)));

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      options: { profile: { type: 'string', default: 'hardware' } },
      allowPositionals: true,
    });
    if (!PROFILES.includes(values.profile)) {
      throw new Error(`--profile: expected ${PROFILES.join(' or ')}, got ${values.profile}`);
    }
    const words = positionals.join(' ').split(/\s+/).filter(Boolean);
    return { profile: values.profile, words };
  } catch (error) {
    return fail(2, error.message);
  }
}

/** Ends the process without the null driver's shutdown, but not before all is written. */
function print(text) {
  process.stdout.write(text, () => process.exit(0));
}

function fail(code, message) {
  process.stderr.write(`kernels: ${message}\n`);
  process.exit(code);
}

/** The figures of each kernel, or why there are none. */
function compiled(kernels) {
  const missing = whyNoCompiler();
  if (missing !== undefined) {
    return { missing };
  }
  const { driver, kernels: figures } = compileKernels(kernels);
  return figures === undefined
    ? { missing: `what it prints is read of ${CHECKED_DRIVER}, this is ${driver}` }
    : { figures };
}
