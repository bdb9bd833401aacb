// Hooks of pnpm for this workspace. The lock file holds a hash of this file, so that what packing
// does is in a file of its own.
const hooks = {
  beforePacking: async (manifest, folder) => {
    const { packedManifest } = await import('./tooling/setup/packed-manifest.mjs');
    return packedManifest(manifest, folder);
  },
};

module.exports = { hooks };
