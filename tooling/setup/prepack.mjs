// The `prepack` script of every published package, which npm, pnpm and changesets run before they
// pack. It refuses a package that would be broken for its users. It builds nothing: several
// packages are packed at the same time, and a build would change files while another one is reading
// them.
import { readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { isBuiltWhole, missingFiles } from './build.mjs';
import { ROOT } from './root.mjs';

const folder = relative(ROOT, process.cwd()).replaceAll('\\', '/');
const manifest = JSON.parse(readFileSync('package.json', 'utf8'));
const fault = faultOf();
if (fault !== undefined) {
  console.error(`${manifest.name}: not packed: ${fault}`);
  process.exitCode = 1;
}

function faultOf() {
  const missing = missingFiles(folder);
  if (missing.length > 0) {
    return (
      `${missing.join(', ')} of its \`exports\` or \`bin\` ${missing.length > 1 ? 'are' : 'is'} not there ` +
      '(`npm run train` builds without declarations). `npm run build` in the root makes all of it.'
    );
  }
  if (!isBuiltWhole()) {
    return 'dist is not the build of these sources. `npm run build` in the root makes it so.';
  }
  if (!process.env.npm_config_user_agent?.startsWith('pnpm/')) {
    return (
      'npm leaves the manifest as it is for this clone; pnpm writes versions and the place of the ' +
      'repository, and leaves out what is not packed (.pnpmfile.cjs). Pack with pnpm.'
    );
  }
  return undefined;
}
