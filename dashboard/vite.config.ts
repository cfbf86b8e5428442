import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Fixed names and one chunk: the built files are committed, so a build of the same source must give the same bytes.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: process.env.DASHBOARD_OUT ?? "../src/gradwire/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "app.css" : "[name][extname]"),
        inlineDynamicImports: true,
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:7077" } },
});
