"""What the paper reports, to be shown beside what we find.

Its tables of the UCI study: test log density per point and seconds, each with its spread
over five splits, which are not ours. Methods stand in the order of `METHODS`; the last is
maximum likelihood for regression and HMC for labels.
"""

METHODS = ("SteinGP2", "SteinGP5", "SteinGP10", "SteinGP20", "VI", "ML or HMC")

LOG_DENSITY: dict[str, tuple[float, ...]] = {
    "airfoil": (0.06, 0.06, 0.05, 0.05, 0.03, 0.03),
    "autompg": (-0.39, -0.39, -0.39, -0.4, -0.39, -0.39),
    "blood": (-0.6, -0.6, -0.6, -0.61, -0.51, -0.52),
    "boston": (-0.3, -0.28, -0.3, -0.3, -0.31, -0.31),
    "breast-cancer": (-0.08, -0.08, -0.08, -0.08, -0.65, -0.08),
    "challenger": (-1.53, -1.52, -1.46, -1.53, -1.51, -1.51),
    "concrete": (-0.25, -0.25, -0.25, -0.25, -0.24, -0.24),
    "concreteslump": (1.08, 1.07, 1.06, 1.08, 0.13, 0.13),
    "fertility": (-0.44, -0.44, -0.43, -0.42, -0.7, -0.54),
    "gas": (0.88, 0.88, 0.89, 0.88, 0.79, 0.79),
    "hepatitis": (-0.41, -0.41, -0.42, -0.4, -0.69, -0.44),
    "machine": (-0.51, -0.52, -0.52, -0.52, -0.52, -0.52),
    "mammographic": (-0.37, -0.37, -0.37, -0.37, -0.39, -0.38),
    "parkinsons": (4.12, 4.12, 4.14, 4.13, 3.95, 3.95),
    "servo": (-0.48, -0.43, -0.41, -0.41, -0.39, -0.39),
    "skillcraft": (-0.99, -0.99, -0.99, -0.99, -1.01, -1.01),
    "spectf": (-0.26, -0.26, -0.26, -0.26, -0.69, -0.68),
    "winered": (-1.17, -1.17, -1.17, -1.17, -1.16, -1.16),
    "winewhite": (0.56, 0.57, 0.57, 0.57, 0.49, 0.55),
}
"""Of the classification sets with the row number as an input."""

LOG_DENSITY_SPREAD: dict[str, tuple[float, ...]] = {
    "airfoil": (0.04, 0.04, 0.06, 0.05, 0.03, 0.03),
    "autompg": (0.09, 0.09, 0.09, 0.09, 0.07, 0.07),
    "blood": (0.05, 0.04, 0.05, 0.04, 0.05, 0.06),
    "boston": (0.12, 0.11, 0.12, 0.13, 0.13, 0.13),
    "breast-cancer": (0.04, 0.02, 0.02, 0.01, 0.09, 0.04),
    "challenger": (0.45, 0.43, 0.32, 0.41, 0.3, 0.3),
    "concrete": (0.07, 0.07, 0.07, 0.07, 0.05, 0.05),
    "concreteslump": (0.39, 0.41, 0.4, 0.39, 1.14, 1.14),
    "fertility": (0.03, 0.03, 0.02, 0.02, 0.08, 0.02),
    "gas": (0.11, 0.11, 0.1, 0.11, 0.11, 0.11),
    "hepatitis": (0.07, 0.07, 0.07, 0.07, 0, 0.04),
    "machine": (0.09, 0.08, 0.08, 0.08, 0.07, 0.07),
    "mammographic": (0.03, 0.03, 0.03, 0.03, 0.03, 0.04),
    "parkinsons": (0.05, 0.05, 0.03, 0.06, 0.04, 0.04),
    "servo": (0.04, 0.05, 0.11, 0.21, 0.1, 0.1),
    "skillcraft": (0.02, 0.02, 0.02, 0.02, 0.02, 0.02),
    "spectf": (0.01, 0.01, 0.01, 0.01, 0, 0.03),
    "winered": (0.03, 0.03, 0.03, 0.03, 0.03, 0.03),
    "winewhite": (0.05, 0.05, 0.05, 0.05, 0.05, 0.05),
}

SECONDS: dict[str, tuple[float, ...]] = {
    "airfoil": (39.96, 74.33, 129.81, 240.74, 61.48, 21),
    "autompg": (10.09, 19.91, 36.11, 63.93, 29.02, 11.97),
    "blood": (57.71, 111.41, 202.47, 381.57, 33.19, 171.49),
    "boston": (24.5, 49.22, 75.34, 151.41, 40.29, 14.05),
    "breast-cancer": (12, 24.01, 38.3, 70.21, 8.82, 141.35),
    "challenger": (9.58, 16.4, 28.42, 52.7, 8.4, 2.55),
    "concrete": (9.67, 65.21, 85.99, 93.73, 39.82, 13.89),
    "concreteslump": (32.37, 56.66, 95.8, 175.98, 35.92, 12.51),
    "fertility": (9.91, 18.9, 33.2, 60.82, 8.71, 141.6),
    "gas": (52.82, 107.62, 199.79, 384.25, 245.96, 102.32),
    "hepatitis": (13.4, 25.84, 44.56, 81.65, 8.78, 141.44),
    "machine": (18.23, 29.56, 50.07, 97.68, 27.98, 9.7),
    "mammographic": (57.69, 111.91, 206.66, 391.31, 42.78, 190.2),
    "parkinsons": (201.64, 468.34, 908.08, 1783.14, 2926.05, 675.27),
    "servo": (6.98, 42.76, 38.15, 61.65, 23.94, 8.21),
    "skillcraft": (68.63, 145.9, 273.3, 530.47, 190.17, 53.96),
    "spectf": (16.09, 30.87, 53.99, 102.61, 9.16, 142.41),
    "wine": (15.73, 61.99, 69.02, 100.62, 48.45, 17.46),
    "winered": (16.93, 46.44, 55.55, 95.14, 28.56, 9.83),
    "winewhite": (142.04, 320.33, 616.94, 1210.34, 1232.24, 315.16),
}

RELATIVE_SECONDS = {"ML": 1.8, "VI": 1.3, "HMC": 5.6}
"""To SteinGP2, the mean over sets."""

MULTIMODAL = {
    "SteinGP": {"rmse": 0.39, "log_density": -24.33, "seconds": 24.8},
    "HMC": {"rmse": 0.43, "log_density": -24.38, "seconds": 50.4},
    "VI": {"rmse": 0.44, "log_density": -27.31, "seconds": 14.7},
}
"""Log density is of all 100 held-out points, or so its size suggests."""

AIR_QUALITY = {
    "SteinGP": {"rmse": (0.82, 0.09), "log_density": (-1.358, 0.15)},
    "SVI": {"rmse": (0.79, 0.07), "log_density": (-1.342, 0.11)},
}
AIR_QUALITY_MIDLANDS = {
    "SteinGP": {"rmse": 0.97, "log_density": -1.467},
    "SVI": {"rmse": 1.00, "log_density": -1.462},
}
