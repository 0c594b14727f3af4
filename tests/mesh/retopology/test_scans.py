"""Simulated scans: functions of their key, in random order, and clean where nothing is done."""

from dataclasses import replace

import numpy as np
import pytest

from quintet.engine.config import ConfigError
from quintet.media.meshes.remesh import closest, voxel_remesh
from quintet.mesh import shapes
from quintet.mesh.retopology.scan_config import ScanConfig
from quintet.mesh.retopology.scans import scan, smoothed
from quintet.mesh.solids import Torus, part_mesh

MESH = shapes.build(shapes.compose(3))
ONLY = ScanConfig(clean=0, remesh=0, noise=0, holes=0, uneven=0)


def scanned(config, seed=0, count=1024, mesh=MESH):
    return scan(*mesh, count, np.random.default_rng(seed), config)


def distance(points, mesh=MESH):
    corners = mesh[0].astype(np.float64)[mesh[1]].transpose(1, 2, 0)
    pairs = np.repeat(points[:, :3].T.astype(np.float64), corners.shape[2], 1)
    apart = pairs - closest(pairs, np.tile(corners, len(points)))
    return np.sqrt(np.square(apart).sum(0)).reshape(len(points), -1).min(1)


@pytest.mark.by_default("0", "3", "6", "10")
@pytest.mark.parametrize("seed", range(12))
def test_a_scan_is_a_function_of_its_key(seed):
    points = scanned(ScanConfig(), seed)
    assert points.dtype == np.float32
    assert points.shape == (1024, 6)
    np.testing.assert_allclose(np.linalg.norm(points[:, 3:], axis=1), 1, atol=1e-4)
    np.testing.assert_array_equal(points, scanned(ScanConfig(), seed))
    assert (points != scanned(ScanConfig(), seed + 100)).any()


@pytest.mark.parametrize("config", [ONLY, ScanConfig(clean=1), replace(ONLY, uneven=1)])
def test_clean_scans_are_on_the_surface_with_its_normals(config):
    points = scanned(config, count=4096)
    assert distance(points[:200]).max() < 1e-6
    normals = np.cross(*np.diff(MESH[0].astype(np.float64)[MESH[1]], axis=1).swapaxes(0, 1))
    areas = np.linalg.norm(normals, axis=1)
    expected = np.abs(normals / areas[:, None]).T @ areas / areas.sum()
    np.testing.assert_allclose(np.abs(points[:, 3:]).mean(0), expected, atol=0.04)


def test_a_remeshed_scan_is_within_a_voxel_of_the_surface():
    config = replace(ONLY, remesh=1, min_resolution=32, max_resolution=32)
    side = float(np.ptp(MESH[0], axis=0).max())
    for seed in range(4):
        apart = distance(scanned(config, seed)[:200])
        assert 1e-6 < apart.mean() < 0.5 * side / 32


def test_noise_has_at_most_its_standard_deviation_and_is_mostly_small():
    config = replace(ONLY, noise=0.02)
    side = float(np.ptp(MESH[0], axis=0).max())
    levels = [distance(scanned(config, seed, 64)).mean() / side for seed in range(40)]
    assert max(levels) < 0.02
    assert np.median(levels) < 0.5 * max(levels)
    assert max(levels) > 0.01


def test_holes_leave_all_points_but_none_near_the_hole():
    config = replace(ONLY, holes=0.5)
    fewer = 0
    for seed in range(8):
        points = scanned(config, seed, 2048)
        assert len(points) == 2048
        whole = scanned(ONLY, seed + 50, 512)
        apart = np.linalg.norm(whole[:, None, :3] - points[None, :, :3], axis=2).min(1)
        fewer += (apart > 0.15).mean() > 0.01
    assert fewer >= 5


def test_the_first_points_are_a_uniform_subset():
    for config in (ONLY, replace(ONLY, uneven=1, holes=0.3, noise=0.001)):
        points = scanned(config, 1, 8192)[:, :3]
        first, last = points[:4096], points[4096:]
        np.testing.assert_allclose(first.mean(0), last.mean(0), atol=0.05)
        np.testing.assert_allclose(first.std(0), last.std(0), atol=0.05)


def test_uneven_density_follows_a_wave_over_the_surface():
    config = replace(ONLY, uneven=1, holes=0.001)
    ratios = []
    for seed in range(6):
        points, even = scanned(config, seed, 4096), scanned(ONLY, seed, 4096)
        cells = [np.histogramdd(each[:, :3], 3, [(-1, 1)] * 3)[0] for each in (points, even)]
        full = cells[1] > 100
        share = cells[0][full] / cells[1][full]
        ratios.append(share.max() / share.min())
    assert np.median(ratios) > 2.5


def test_smoothing_keeps_a_closed_surface_and_lowers_its_roughness():
    ring = part_mesh(Torus(24, 12, 1.0, 0.4, 0.4))
    vertices, faces = voxel_remesh(*ring, 40)
    rough = vertices + np.random.default_rng(0).normal(size=vertices.shape) * 0.01
    before, after = (distance(each[::20], ring).mean() for each in (rough, smoothed(rough, faces)))
    assert after < 0.8 * before


@pytest.mark.parametrize(
    ("setting", "value"),
    [("remesh", 1.1), ("noise", -0.1), ("holes", 0.9), ("min_resolution", 80), ("clean", np.nan)],
)
def test_settings_out_of_range_are_refused(setting, value):
    with pytest.raises(ConfigError, match=f"{setting} is"):
        ScanConfig(**{setting: value})
