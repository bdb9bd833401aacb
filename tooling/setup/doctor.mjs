// `npm run doctor` shows what this machine offers to training and to the tests, what is missing,
// and the command that mends each thing. It changes nothing and always exits with 0.
import { existsSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { join } from 'node:path';
import { findChromium } from './chromium.mjs';
import { hasBlas } from './open-blas.mjs';
import { findMpirun } from './open-mpi.mjs';
import { ROOT } from './root.mjs';
import { swiftShaderEnvironment } from './swiftshader.mjs';
import { aptRefusal, linuxRelease } from './system-packages.mjs';
import { probeAdapters, runtimeDirectory } from './webgpu-driver.mjs';

/** An empty module with one v128.const. It is valid only where wasm has SIMD. */
const SIMD_MODULE = new Uint8Array([
  ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0],
  ...[10, 23, 1, 21, 0, 253, 12, ...new Array(16).fill(0), 26, 11],
]);

const MIB = 1024 * 1024;

export async function doctor() {
  const mends = [];
  for (const section of [machine, packages, cpuDevice, webgpuDevices, browser, mpi]) {
    const { title, lines, mend = [] } = section();
    console.log(`\n${title}`);
    for (const line of lines) {
      console.log(`  ${line}`);
    }
    mends.push(...mend);
  }
  console.log(
    mends.length === 0 ? '\nNothing is missing.' : '\nWhat is missing, and what mends it',
  );
  for (const { what, command } of mends) {
    console.log(`  ${what}\n    ${command}`);
  }
}

function machine() {
  const release = linuxRelease();
  const system = release ? `${release.id} ${release.version}` : process.platform;
  const memory = Math.round(totalmem() / (1024 * MIB));
  return {
    title: 'Machine',
    lines: [
      `Node ${process.versions.node}, ${system}, ${process.arch}`,
      `${availableParallelism()} cores, ${memory} GiB of memory`,
    ],
  };
}

function packages() {
  const isInstalled = existsSync(join(ROOT, 'node_modules/.modules.yaml'));
  const isBuilt = existsSync(join(ROOT, '.shardweave/stamps/build'));
  return {
    title: 'This clone',
    lines: [
      `dependencies: ${isInstalled ? 'installed' : 'not installed yet'}`,
      `packages: ${isBuilt ? 'built' : 'not built yet'}`,
    ],
    mend: isInstalled && isBuilt ? [] : [{ what: 'Set-up', command: 'npm run train' }],
  };
}

function cpuDevice() {
  const hasSimd = WebAssembly.validate(SIMD_MODULE);
  const hasThreads = typeof SharedArrayBuffer === 'function';
  const isFast = hasBlas();
  const simd = { what: 'WebAssembly SIMD', command: 'install an official Node build' };
  const blas = {
    what: 'OpenBLAS, by which the cpu device multiplies up to twice as fast',
    command: installCommand(['libopenblas0-pthread'], 'openblas'),
  };
  return {
    title: 'Device cpu (WebAssembly, always there)',
    lines: [
      `SIMD: ${hasSimd ? 'yes' : 'no'}`,
      `threads over a shared memory: ${hasThreads ? `yes, ${availableParallelism()}` : 'no'}`,
      `a library for products: ${isFast ? 'yes (shardweave doctor says how fast)' : 'no'}`,
    ],
    mend: [...(hasSimd ? [] : [simd]), ...(isFast ? [] : [blas])],
  };
}

function webgpuDevices() {
  const title = 'Device webgpu (Dawn)';
  if (!existsSync(join(ROOT, 'node_modules/webgpu'))) {
    return { title, lines: ['not known before the dependencies are installed'] };
  }
  const { adapters, stderr } = probeAdapters(runtimeDirectory());
  const swiftShader = swiftShaderEnvironment();
  const unpacked = swiftShader ? probeAdapters(swiftShader).adapters : [];
  const lines = adapters.flatMap((adapter, i) => adapterLines(adapter, { index: `${i}: ` }));
  const origin = ' (for tests, from npm)';
  lines.push(...unpacked.flatMap((adapter) => adapterLines(adapter, { origin })));
  if (adapters.length > 0) {
    lines.push('--device webgpu takes the first; webgpu:INDEX, or a part of a name, another');
  }
  if (adapters.length === 0) {
    lines.push('Dawn accepts no driver of this machine', ...why(stderr));
  }
  if (!adapters.some(({ isSoftware }) => !isSoftware)) {
    lines.push('no hardware adapter: `npm run train` uses the cpu device');
  }
  return { title, lines, mend: webgpuMends(adapters, unpacked) };
}

function adapterLines(adapter, { index = '', origin = '' }) {
  const { vendor, architecture, device, description, isSoftware, features, limits } = adapter;
  const kind = isSoftware ? 'software' : 'hardware';
  const has = (name) => `${name} ${features.includes(name) ? 'yes' : 'no'}`;
  const size = (bytes) => `${Math.round(bytes / MIB)} MiB`;
  return [
    `${index}${device || [vendor, architecture].filter(Boolean).join(' ') || 'unnamed'}, ${kind}${origin}`,
    `  driver: ${description || 'unnamed'}`,
    `  ${['shader-f16', 'subgroups', 'timestamp-query'].map(has).join(', ')}`,
    `  largest buffer ${size(limits.maxBufferSize)}, ` +
      `binding ${size(limits.maxStorageBufferBindingSize)}, ` +
      `${limits.maxStorageBuffersPerShaderStage} storage buffers a stage`,
    `  workgroup: ${limits.maxComputeInvocationsPerWorkgroup} invocations, ` +
      `${Math.round(limits.maxComputeWorkgroupStorageSize / 1024)} KiB`,
  ];
}

function why(stderr) {
  const isOldGlibc = /GLIBC_[\d.]+' not found/.test(stderr);
  if (isOldGlibc) {
    return ['the webgpu package needs glibc 2.34 or later'];
  }
  const line = stderr.split('\n').find((text) => /error|failed|not found/i.test(text));
  return line ? [`it says: ${line.trim()}`] : [];
}

function webgpuMends(adapters, unpacked) {
  const hasHardware = adapters.some(({ isSoftware }) => !isSoftware);
  const mends = [];
  if (!hasHardware) {
    mends.push(hardwareMend());
  }
  if (adapters.length === 0 && unpacked.length === 0) {
    mends.push(softwareMend());
  }
  return mends.filter(Boolean);
}

/** Advice for a machine that has a GPU without a driver. */
function hardwareMend() {
  if (process.platform === 'linux') {
    const isNvidia = existsSync('/proc/driver/nvidia/version');
    if (isNvidia) {
      const what = 'The Vulkan loader for the NVIDIA GPU';
      return {
        what,
        command: installCommand(['libvulkan1'], 'vulkan-loader', 'vulkan-icd-loader'),
      };
    }
    if (!existsSync('/dev/dri')) {
      return undefined;
    }
    const what = 'A Vulkan driver for the GPU under /dev/dri';
    // Set-up knows which of Debian's suites has a driver that Dawn accepts.
    if (!aptRefusal()) {
      return { what, command: 'npm test' };
    }
    return {
      what,
      command: installCommand(mesaPackages(), 'mesa-vulkan-drivers', 'vulkan-icd-loader'),
    };
  }
  if (process.platform === 'darwin') {
    return { what: 'A Metal GPU (Dawn found none)', command: 'softwareupdate --install --all' };
  }
  return { what: 'A Direct3D 12 or Vulkan driver', command: 'start ms-settings:windowsupdate' };
}

function softwareMend() {
  const what = 'A software adapter for the tests (`npm test` sees to it by itself)';
  return { what, command: 'npm test' };
}

function mesaPackages() {
  const release = linuxRelease();
  const isBookworm = release?.id === 'debian' && release.version === '12';
  const packages = ['mesa-vulkan-drivers', 'libvulkan1'];
  return isBookworm ? ['-t', 'bookworm-backports', ...packages] : packages;
}

function installCommand(debian, fedora, arch = fedora) {
  const sudo = process.getuid() === 0 ? '' : 'sudo ';
  if (linuxRelease()?.hasApt) {
    return `${sudo}apt-get install ${debian.join(' ')}`;
  }
  if (existsSync('/usr/bin/dnf')) {
    return `${sudo}dnf install ${fedora}`;
  }
  if (existsSync('/usr/bin/pacman')) {
    return `${sudo}pacman -S ${arch}`;
  }
  return `install ${fedora} with this system's package manager`;
}

function browser() {
  const found = findChromium();
  const title = 'Browser for the page tests';
  if (found) {
    return { title, lines: [found] };
  }
  const commands = {
    darwin: 'brew install --cask google-chrome',
    win32: 'winget install --id Google.Chrome --exact',
    linux:
      linuxRelease()?.id === 'debian' && !aptRefusal()
        ? 'npm test'
        : installCommand(['chromium'], 'chromium'),
  };
  const command = commands[process.platform] ?? 'install Chromium or Chrome';
  return { title, lines: ['none: the page tests skip'], mend: [{ what: title, command }] };
}

function mpi() {
  const found = findMpirun();
  const title = 'MPI for the mpi transport';
  if (found) {
    return { title, lines: [found] };
  }
  const command =
    process.platform === 'darwin'
      ? 'brew install open-mpi'
      : installCommand(['openmpi-bin'], 'openmpi');
  const lines = ['no mpirun: its tests skip'];
  return { title, lines, mend: [{ what: title, command }] };
}
